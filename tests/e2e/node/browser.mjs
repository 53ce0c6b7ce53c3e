// One headless Chromium with one page, driven over its pipes (see lines.mjs).
// What the page logs as an error goes to stderr.

import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { launch, tellOf } from './chromium.mjs';
import { serve } from './lines.mjs';

const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');

let browser;
let page;

const log = (text) => process.stderr.write(`${text}\n`);

const textOf = (selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent.trim()));

serve(
  {
    launch: async ({ width = 1280, height = 860, ...chromium }) => {
      browser = await launch({ ...chromium, defaultViewport: { width, height } });
      page = await browser.newPage();
      tellOf(page, log);
      return browser.version();
    },

    goto: async ({ url, timeout_ms }) => void (await page.goto(url, { waitUntil: 'load', timeout: timeout_ms })),
    reload: async ({ timeout_ms }) => void (await page.reload({ waitUntil: 'load', timeout: timeout_ms })),
    dark: ({ on }) => page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: on ? 'dark' : 'light' }]),
    resize: ({ width, height }) => page.setViewport({ width, height }),

    click: ({ selector, timeout_ms }) => page.locator(selector).setTimeout(timeout_ms).click(),
    keys: ({ text }) => page.keyboard.type(text),
    press: async ({ key, held = null }) => {
      if (held) await page.keyboard.down(held);
      await page.keyboard.press(key);
      if (held) await page.keyboard.up(held);
    },
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
    // Left, right, top and bottom of the fitting elements, in pixels of the window.
    boxes: ({ selector }) =>
      page.$$eval(selector, (elements) =>
        elements.map((element) => {
          const { left, right, top, bottom } = element.getBoundingClientRect();
          return { left, right, top, bottom };
        })
      ),
    // What axe-core has against the page: a line for each finding, with its impact, its rule and an element.
    accessibility: async () => {
      // Not as an element of the page, whose policy may forbid scripts of others.
      if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(await readFile(AXE, 'utf8'));
      const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
      return found.violations.flatMap(({ impact, id, nodes }) => nodes.map(({ html }) => `${impact} ${id}: ${html}`));
    },
    // How many pixels the page is wider than the window.
    overflow: () => page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth),
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
