import { defineConfig } from 'vite';

export default defineConfig({
  // Relative addresses, so that the built app works under any path.
  base: './',
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact' },
  worker: { format: 'es' },
  build: {
    target: 'es2022',
    rollupOptions: { input: ['index.html', 'own.html', 'studio.html'] },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 1000
  }
});
