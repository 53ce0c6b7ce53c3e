// The studio: who is signed in, and which page is shown.

import { Component, type ComponentChildren, render } from 'preact';
import { lazy, Suspense } from 'preact/compat';
import { useCallback, useEffect, useState } from 'preact/hooks';
import { ApiError, findSession, type Session, signOut, whenSessionEnds } from './api';
import { SignedIn } from './hooks';
import { Failure, Waiting } from './parts';
import { SignIn } from './signin';
import './style.css';

const PAGES = [
  { name: 'rules', title: 'Rules', Page: lazy(() => import('./rules/page')) },
  { name: 'users', title: 'Users and rows', Page: lazy(() => import('./users/page')) },
  { name: 'service', title: 'Service', Page: lazy(() => import('./service/page')) }
];

const pageIn = (hash: string) => PAGES.find(({ name }) => hash.replace(/^#\/?/, '').split('?')[0] === name);

function usePage() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const look = () => setHash(location.hash);
    addEventListener('hashchange', look);
    return () => removeEventListener('hashchange', look);
  }, []);
  return pageIn(hash) ?? PAGES[0]!;
}

function Mark() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="currentColor" />
      <path d="M16 5c4 5.4 6.6 9 6.6 12.6a6.6 6.6 0 0 1-13.2 0C9.4 14 12 10.4 16 5z" fill="white" />
    </svg>
  );
}

/** Shows what failed in a page instead of nothing, such as its files after an upgrade of the service. */
class Guard extends Component<{ children: ComponentChildren }, { error?: ApiError }> {
  static override getDerivedStateFromError(error: unknown) {
    const what = error instanceof Error ? error.message : String(error);
    return { error: new ApiError(0, '', `This page failed: ${what}`, 'load it again; the service may have been upgraded') };
  }

  override render() {
    return this.state.error ? <Failure error={this.state.error} /> : this.props.children;
  }
}

function Studio({ session, leave }: { session: Session; leave: () => void }) {
  const { name, title, Page } = usePage();
  useEffect(() => {
    document.title = `${title} · Headwater studio`;
  }, [title]);
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), document.getElementById('content')?.focus())}>
        To the content
      </a>
      <header class="top">
        <Mark />
        <strong>Headwater</strong>
        <nav aria-label="Pages">
          {PAGES.map((each) => (
            <a key={each.name} href={`#/${each.name}`} aria-current={each.name === name ? 'page' : undefined}>
              {each.title}
            </a>
          ))}
        </nav>
        <span class="who" data-testid="who">
          {session.name || 'signed in'}
          {session.role === 'view' && <span class="role">reads only</span>}
        </span>
        <button type="button" class="quiet" onClick={leave} data-testid="sign-out">
          Sign out
        </button>
      </header>
      <main id="content" tabIndex={-1} class={name}>
        <h1 class="unseen">{title}</h1>
        <SignedIn.Provider value={session}>
          <Guard key={name}>
            <Suspense fallback={<Waiting what="Loading" />}>
              <Page />
            </Suspense>
          </Guard>
        </SignedIn.Provider>
      </main>
    </>
  );
}

function App() {
  const [session, setSession] = useState<Session | null>();
  const [error, setError] = useState<ApiError>();
  const [ended, setEnded] = useState(false);
  useEffect(() => {
    whenSessionEnds(() => {
      setEnded(true);
      setSession(null);
    });
    findSession().then(setSession, setError);
  }, []);
  const leave = useCallback(() => {
    signOut().then(() => (setEnded(false), setSession(null)), setError);
  }, []);
  if (error) {
    return (
      <main class="alone">
        <h1>Headwater studio</h1>
        <Failure error={error} />
      </main>
    );
  }
  if (session === undefined) return <Waiting what="Loading" />;
  if (session === null) return <SignIn ended={ended} enter={setSession} />;
  return <Studio session={session} leave={leave} />;
}

render(<App />, document.getElementById('studio')!);
