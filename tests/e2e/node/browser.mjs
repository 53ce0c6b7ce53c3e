// One headless Chromium with one page, driven over its pipes (see lines.mjs).
// What the page logs as an error goes to stderr.

import puppeteer from 'puppeteer-core';
import { serve } from './lines.mjs';

// The browser talks to this machine only, and to nobody on its own account.
const QUIET = [
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-default-apps',
  '--disable-domain-reliability',
  '--disable-sync',
  '--no-first-run',
  '--no-pings',
  '--no-proxy-server',
  '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost'
];

let browser;
let page;

const log = (text) => process.stderr.write(`${text}\n`);

const textOf = (selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent.trim()));

serve(
  {
    launch: async ({ executable, sandbox, profile, width = 1280, height = 860 }) => {
      browser = await puppeteer.launch({
        executablePath: executable,
        userDataDir: profile,
        args: [...QUIET, '--disable-dev-shm-usage', '--disable-gpu', ...(sandbox ? [] : ['--no-sandbox'])],
        defaultViewport: { width, height }
      });
      page = await browser.newPage();
      page.on('pageerror', (error) => log(`page error: ${error.message}`));
      page.on('requestfailed', (request) => log(`request failed: ${request.url()} ${request.failure()?.errorText}`));
      page.on('console', (message) => {
        if (['error', 'warn'].includes(message.type())) log(`${message.type()}: ${message.text()}`);
      });
      return browser.version();
    },

    goto: async ({ url, timeout_ms }) => void (await page.goto(url, { waitUntil: 'load', timeout: timeout_ms })),
    reload: async ({ timeout_ms }) => void (await page.reload({ waitUntil: 'load', timeout: timeout_ms })),
    dark: ({ on }) => page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: on ? 'dark' : 'light' }]),
    resize: ({ width, height }) => page.setViewport({ width, height }),

    click: ({ selector, timeout_ms }) => page.locator(selector).setTimeout(timeout_ms).click(),
    press: ({ key }) => page.keyboard.press(key),
    // As a person does: what comes in may move the field away under the click, who then clicks again.
    type: async ({ selector, text, timeout_ms }) => {
      const isFocused = (selector) => document.activeElement?.matches(selector) ?? false;
      do await page.locator(selector).setTimeout(timeout_ms).click();
      while (!(await page.evaluate(isFocused, selector)));
      await page.keyboard.type(text);
    },

    texts: ({ selector }) => textOf(selector),
    attributes: ({ selector, name }) =>
      page.$$eval(selector, (elements, name) => elements.map((element) => element.getAttribute(name)), name),
    focused: () => page.evaluate(() => document.activeElement?.getAttribute('data-testid') ?? null),

    // Waits until some element that fits `selector` shows exactly `text`; without a text, until there is one;
    // with `gone`, until there is none. Answers what there was at the end.
    wait: async ({ selector, text = null, gone = false, timeout_ms }) => {
      const met = (selector, text, gone) => {
        const elements = [...document.querySelectorAll(selector)];
        const fits = text === null ? elements : elements.filter((element) => element.textContent.trim() === text);
        return gone ? fits.length === 0 : fits.length > 0;
      };
      try {
        await page.waitForFunction(met, { timeout: timeout_ms, polling: 50 }, selector, text, gone);
        return { done: true };
      } catch (error) {
        if (error.name !== 'TimeoutError') throw error;
        return { done: false, texts: await textOf(selector) };
      }
    },

    screenshot: async ({ path, full = false }) => void (await page.screenshot({ path, fullPage: full }))
  },
  { onEnd: () => browser?.close() }
);
