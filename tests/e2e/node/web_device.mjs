// One device: the stock web SDK in a headless Chromium, driven over its pipes (see lines.mjs). Its page is built from
// ../web; what it logs goes to stderr.

import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { launch, tellOf } from './chromium.mjs';
import { deviceCommands } from './commands.mjs';
import { serve } from './lines.mjs';

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.wasm': 'application/wasm' };

let browser;
let page;
let site;

const log = (text) => process.stderr.write(`${text}\n`);

const serving = async (folder) => {
  site = createServer(async (request, response) => {
    const file = join(folder, new URL(request.url, 'http://x').pathname);
    try {
      const content = await readFile(file);
      response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => site.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${site.address().port}/index.html`;
};

const tell = (command, args) => page.evaluate((command, args) => window.device(command, args), command, args);

const forwarded = Object.keys(deviceCommands({})).map((command) => [command, (args) => tell(command, args)]);

serve(
  {
    ...Object.fromEntries(forwarded),
    open: async ({ executable, sandbox, profile, folder, ...options }) => {
      browser = await launch({ executable, sandbox, profile, protocolTimeout: 0 });
      page = await browser.newPage();
      tellOf(page, log, ['error', 'warn', 'log']);
      await page.goto(await serving(folder), { waitUntil: 'load' });
      await tell('open', options);
    }
  },
  {
    onEnd: async () => {
      await browser?.close();
      site?.close();
    }
  }
);
