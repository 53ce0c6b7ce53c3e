import { execFile } from 'node:child_process';
import { defineConfig, loadEnv } from 'vite';

const { HEADWATER = 'headwater' } = loadEnv('development', import.meta.dirname, '');

// `GET /development/token?user=ID`, for this page on this machine only: a token for any user, made by `headwater token`
// with the secret in ../.env, so that the page has none. What you publish has no such address: there your login makes
// the tokens.
function token(request, response) {
  const isHere = ['127.0.0.1', '::1', '::ffff:127.0.0.1'].includes(request.socket.remoteAddress);
  if (!isHere || !['same-origin', 'none', undefined].includes(request.headers['sec-fetch-site'])) {
    response.statusCode = 403;
    response.end('tokens for development are for this page on this machine');
    return;
  }
  const user = new URL(request.url, 'http://localhost').searchParams.get('user') ?? '';
  execFile(HEADWATER, ['token', '--config', '../headwater.yaml', '--', user], (error, token, said) => {
    response.statusCode = error ? 500 : 200;
    const missing = error?.code === 'ENOENT' && `${HEADWATER} is not there: correct HEADWATER in app/.env.local`;
    response.end(error ? missing || said || String(error) : token.trim());
  });
}

const tokens = {
  name: 'tokens-for-development',
  configureServer: (server) => void server.middlewares.use('/development/token', token),
  configurePreviewServer: (server) => void server.middlewares.use('/development/token', token)
};

export default defineConfig({
  plugins: [tokens],
  worker: { format: 'es' },
  optimizeDeps: { exclude: ['@powersync/web'] },
  build: { target: 'es2022', chunkSizeWarningLimit: 1000 }
});
