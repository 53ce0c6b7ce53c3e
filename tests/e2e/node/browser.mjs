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
    // The answers that the page got since it was loaded or last asked for them: path with query, bytes of the body, and
    // milliseconds from the request to the answer's first byte and to its end.
    answers: () =>
      page.evaluate(() => {
        const found = performance.getEntriesByType('resource').map((entry) => ({
          path: new URL(entry.name).pathname + new URL(entry.name).search,
          bytes: entry.decodedBodySize,
          first: entry.responseStart - entry.requestStart,
          whole: entry.responseEnd - entry.startTime
        }));
        performance.clearResourceTimings();
        performance.setResourceTimingBufferSize(5000);
        return found;
      }),
    // How many elements fit.
    number: ({ selector }) => page.evaluate((selector) => document.querySelectorAll(selector).length, selector),
    // Acts, and answers how many milliseconds later the page had painted an element that fits `until` and has `text`
    // in it: from the event of the input to the end of the frame in which it was painted.
    timed: async ({ click = null, key = null, until, text, timeout_ms }) => {
      const target = click && (await page.locator(click).setTimeout(timeout_ms).waitHandle());
      if (target) await target.scrollIntoView();
      await page.evaluate(
        (until, text) => {
          const met = () => [...document.querySelectorAll(until)].some((each) => each.textContent.includes(text));
          window.painted = new Promise((resolve) => {
            const begin = ({ timeStamp }) => {
              const look = () => requestAnimationFrame(() => (met() ? requestAnimationFrame(end) : look()));
              const end = () => resolve(performance.now() - timeStamp);
              look();
            };
            for (const kind of ['pointerdown', 'keydown']) addEventListener(kind, begin, { capture: true, once: true });
          });
        },
        until,
        text
      );
      await (target ? target.click() : page.keyboard.press(key));
      return page.evaluate(() => window.painted);
    },
    // Puts the pointer on the first occurrence of a text in the element.
    point: async ({ selector, text }) => {
      const at = await page.evaluate(
        (selector, text) => {
          const walker = document.createTreeWalker(document.querySelector(selector), NodeFilter.SHOW_TEXT);
          for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            const start = node.data.indexOf(text);
            if (start < 0) continue;
            const range = document.createRange();
            range.setStart(node, start);
            range.setEnd(node, start + text.length);
            const { left, right, top, bottom } = range.getBoundingClientRect();
            return { x: (left + right) / 2, y: (top + bottom) / 2 };
          }
          return null;
        },
        selector,
        text
      );
      if (!at) throw new Error(`no ${text} in ${selector}`);
      await page.mouse.move(at.x - 2, at.y);
      await page.mouse.move(at.x, at.y);
    },
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
