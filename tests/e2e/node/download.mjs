// Reads sync streams with the stock fetch of Node and of a headless Chromium, driven over its pipes (see lines.mjs).

import { launch } from './chromium.mjs';
import { serve } from './lines.mjs';

let browser;
let page;

// Runs in Node and in a page: the text up to the end of the first checkpoint, and how it came. Then it hangs up.
const download = async ({ url, token, encoding }) => {
  const hangUp = new AbortController();
  const headers = { authorization: `Token ${token}`, 'content-type': 'application/json' };
  if (encoding) headers['accept-encoding'] = encoding;
  const body = JSON.stringify({ raw_data: true });
  const response = await fetch(url, { method: 'POST', headers, body, signal: hangUp.signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  while (!text.includes('{"checkpoint_complete"')) {
    const { value, done } = await reader.read();
    if (done) break;
    text += value;
  }
  await reader.cancel().catch(() => {});
  hangUp.abort();
  return { encoding: response.headers.get('content-encoding'), text };
};

serve(
  {
    launch: async ({ url, ...chromium }) => {
      browser = await launch(chromium);
      page = await browser.newPage();
      await page.goto(url);
    },
    node: (asked) => download(asked),
    // A page may not set this header itself; a browser can be told to.
    chromium: async ({ encoding, ...asked }) => {
      await page.setExtraHTTPHeaders(encoding ? { 'accept-encoding': encoding } : {});
      return await page.evaluate(download, asked);
    }
  },
  { onEnd: () => browser?.close() }
);
