// node unpack.mjs FROM TO: writes every *.br file of one directory, decompressed, into the other.

import { createReadStream, createWriteStream } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createBrotliDecompress } from 'node:zlib';

const [from, to] = process.argv.slice(2);
for (const name of (await readdir(from)).filter((name) => name.endsWith('.br'))) {
  const target = join(to, basename(name, '.br'));
  await pipeline(createReadStream(join(from, name)), createBrotliDecompress(), createWriteStream(target));
}
