// The studio's server: its session, and the admin API below /api. Addresses are relative to the page, which may be
// served below any path.

export interface Session {
  role: 'view' | 'edit';
  name: string;
  expires: number;
  csrf: string;
}

/** An answer that is an error. `data` is the whole error, which may have more than its text. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    description: string,
    readonly remedy: string,
    readonly data: Record<string, unknown> = {}
  ) {
    super(description);
  }
}

const ROOT = new URL('..', document.baseURI);
const OURS = 'api/headwater/v1/';
const READING = new Set(['GET', 'HEAD']);

let csrf = '';
let onEnd: () => void = () => {};

/** Calls `then` when the server no longer knows the session. */
export function whenSessionEnds(then: () => void): void {
  onEnd = then;
}

async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (csrf && !READING.has(method)) headers['x-headwater-csrf'] = csrf;
  try {
    return await fetch(new URL(path, ROOT), {
      method,
      headers,
      cache: 'no-store',
      credentials: 'same-origin',
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal ? { signal } : {})
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, '', 'The service does not answer', 'see whether it runs, and whether this machine is online');
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const { status } = response;
  try {
    const { error } = (await response.json()) as { error: Record<string, unknown> };
    const text = (key: string) => (typeof error[key] === 'string' ? error[key] : '');
    return new ApiError(status, text('code'), text('description') || `Status ${status}`, text('details'), error);
  } catch {
    const remedy = status === 429 ? 'try again in a while' : '';
    return new ApiError(status, '', status === 429 ? 'Too many requests' : `The service answered ${status}`, remedy);
  }
}

async function ask<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const response = await send(method, path, body, signal);
  if (response.status === 401) onEnd();
  if (!response.ok) throw await errorOf(response);
  return ((await response.json()) as { data: T }).data;
}

export type Query = Record<string, string | number>;

const withQuery = (path: string, query: Query): string => {
  const text = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)])).toString();
  return text ? `${path}?${text}` : path;
};

/** GET of a path below /api/headwater/v1. */
export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  ask('GET', withQuery(OURS + path, query), undefined, signal);

/** POST to a path below /api/headwater/v1. */
export const post = <T>(path: string, body: object = {}, signal?: AbortSignal): Promise<T> =>
  ask('POST', OURS + path, body, signal);

/** The paths that have other roots. */
export const getStatus = <T>(signal?: AbortSignal): Promise<T> => ask('GET', 'api/admin/v1/status', undefined, signal);
export const getDiagnostics = <T>(signal?: AbortSignal): Promise<T> => ask('POST', 'api/admin/v1/diagnostics', {}, signal);

/** Server-sent events of a path below /api/headwater/v1. */
export const events = (path: string): EventSource => new EventSource(new URL(OURS + path, ROOT));

async function sessionOf(response: Response): Promise<Session> {
  if (!response.ok) throw await errorOf(response);
  const session = (await response.json()) as Session;
  csrf = session.csrf;
  return session;
}

/** The session that this browser has, or null. */
export async function findSession(): Promise<Session | null> {
  const response = await send('GET', 'studio/session');
  return response.status === 401 ? null : sessionOf(response);
}

export const signIn = async (token: string, name: string): Promise<Session> =>
  sessionOf(await send('POST', 'studio/session', { token, ...(name ? { name } : {}) }));

export async function signOut(): Promise<void> {
  const response = await send('DELETE', 'studio/session');
  if (!response.ok && response.status !== 401) throw await errorOf(response);
  csrf = '';
}
