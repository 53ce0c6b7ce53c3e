// What the pages share of state: the session, answers of the server that stay fresh, and actions.

import { createContext } from 'preact';
import { useCallback, useContext, useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, type Session } from './api';

export const SignedIn = createContext<Session>(undefined as unknown as Session);

/** Whether the operator may change things. The server decides it again. */
export const useMayEdit = (): boolean => useContext(SignedIn).role === 'edit';

export interface Answer<T> {
  value: T | undefined;
  error: ApiError | undefined;
  loading: boolean;
  again: () => void;
}

const asError = (error: unknown): ApiError =>
  error instanceof ApiError ? error : new ApiError(0, '', error instanceof Error ? error.message : String(error), '');

/**
 * What `ask` answers, asked again when `key` changes and, with `every`, after so many milliseconds while the page is
 * seen. The last value stays while the next one is fetched. A key of null asks nothing.
 */
export function useAnswer<T>(key: string | null, ask: (signal: AbortSignal) => Promise<T>, every?: number): Answer<T> {
  const [held, setHeld] = useState<{ key: string | null; value?: T; error?: ApiError; loading: boolean }>({
    key,
    loading: key !== null
  });
  const [round, setRound] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    if (key === null) return undefined;
    const controller = new AbortController();
    let timer: number | undefined;
    setHeld((before) => (before.key === key ? { ...before, loading: true } : { key, loading: true }));
    const look = async () => {
      try {
        if (document.visibilityState === 'visible' || round === 0) {
          const value = await latest.current(controller.signal);
          if (!controller.signal.aborted) setHeld({ key, value, loading: false });
        }
      } catch (error) {
        if (controller.signal.aborted) return;
        setHeld((before) => ({ ...before, key, error: asError(error), loading: false }));
      }
      if (every !== undefined && !controller.signal.aborted) timer = window.setTimeout(() => void look(), every);
    };
    void look();
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, [key, round, every]);
  const again = useCallback(() => setRound((before) => before + 1), []);
  const same = held.key === key;
  return {
    value: same ? held.value : undefined,
    error: same ? held.error : undefined,
    loading: key !== null && (!same || held.loading),
    again
  };
}

/**
 * What `ask` answers for a place in a long list, with that place: until the next page is there, the one before is shown,
 * and the ways on and back begin there.
 */
export function usePage<T extends object, Place>(
  name: string,
  place: Place,
  ask: (signal: AbortSignal) => Promise<T>,
  every?: number
): Answer<T & { place: Place }> {
  const last = useRef<T & { place: Place }>(undefined);
  const key = `${name} ${JSON.stringify(place)}`;
  const answer = useAnswer(key, async (signal) => ({ ...(await ask(signal)), place }), every);
  if (answer.value !== undefined) last.current = answer.value;
  return { ...answer, value: last.current };
}

const LATER = 200; // milliseconds

/** A text as it was typed, once the person pauses. */
export function useTyped(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), LATER);
    return () => window.clearTimeout(timer);
  }, [text]);
  return settled;
}

export interface Action<Args extends unknown[]> {
  run: (...args: Args) => Promise<boolean>;
  busy: boolean;
  error: ApiError | undefined;
  clear: () => void;
}

/** Something that the person starts: whether it runs, and its error. It does not run twice at once. */
export function useAction<Args extends unknown[]>(act: (...args: Args) => Promise<void>): Action<Args> {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError>();
  const running = useRef(false);
  const latest = useRef(act);
  latest.current = act;
  const run = useCallback(async (...args: Args) => {
    if (running.current) return false;
    running.current = true;
    setBusy(true);
    setError(undefined);
    try {
      await latest.current(...args);
      return true;
    } catch (caught) {
      setError(asError(caught));
      return false;
    } finally {
      running.current = false;
      setBusy(false);
    }
  }, []);
  return { run, busy, error, clear: useCallback(() => setError(undefined), []) };
}
