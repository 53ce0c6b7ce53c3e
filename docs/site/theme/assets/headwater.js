// What Material makes in the browser gets a name for screen readers, and what scrolls can be reached by keyboard.
const name = () => {
  document.querySelector('.md-search')?.setAttribute('aria-label', 'Search');
  document.querySelectorAll('.md-code__nav:not([aria-label])').forEach((nav, number) =>
    nav.setAttribute('aria-label', `Code ${number + 1 + document.querySelectorAll('.md-code__nav[aria-label]').length}`)
  );
  document.querySelectorAll('.md-typeset__scrollwrap:not([tabindex]), pre > code:not([tabindex])').forEach((part) =>
    part.setAttribute('tabindex', '0')
  );
};

new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
