// uPlot asks Intl for the browser's language as it loads. On machines without a locale Chromium names one that Intl
// refuses (en-US@posix). Import this before it.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, 'language', { value: 'en' });
}
