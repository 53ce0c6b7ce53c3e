// Builds the page of a web device with the tools and the packages of the demo app.

import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));
const owner = fileURLToPath(new URL('../../../clients/web/package.json', import.meta.url));

const packagesOfTheDemo = {
  name: 'packages-of-the-demo',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (id.startsWith('@powersync/') && !importer?.includes('/node_modules/'))
      return this.resolve(id, owner, { ...options, skipSelf: true });
  }
};

export default {
  root: here,
  base: './',
  cacheDir: `${here}/node_modules/.vite`,
  plugins: [packagesOfTheDemo],
  worker: { format: 'es' },
  build: { target: 'es2022', reportCompressedSize: false, chunkSizeWarningLimit: 1000, minify: false }
};
