// How a headless Chromium is started: it talks to this machine only, and to nobody on its own account.

import puppeteer from 'puppeteer-core';

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

export const launch = ({ executable, sandbox, profile, ...more }) =>
  puppeteer.launch({
    executablePath: executable,
    userDataDir: profile,
    args: [...QUIET, '--disable-dev-shm-usage', '--disable-gpu', ...(sandbox ? [] : ['--no-sandbox'])],
    ...more
  });

// What the page logs as an error or a warning, and what of `levels` else, goes to `log`.
export const tellOf = (page, log, levels = ['error', 'warn']) => {
  page.on('pageerror', (error) => log(`page error: ${error.message}`));
  page.on('requestfailed', (request) => log(`request failed: ${request.url()} ${request.failure()?.errorText}`));
  page.on('console', (message) => {
    if (levels.includes(message.type())) log(`${message.type()}: ${message.text()}`);
  });
};
