// What the demo asks of the server that serves it. All addresses are relative to the page.

import type { CommonPowerSyncDatabase, CrudTransaction, PowerSyncBackendConnector } from '@powersync/web';

export interface User {
  id: string;
  name: string;
}

interface Credentials {
  token: string;
  endpoint: string;
}

/** Local transactions that are sent at once, when the device was offline for a while. */
const BATCH = 100;

/** How long a token is used for questions; it is valid for an hour. */
const TOKEN_MS = 30 * 60_000;

async function getJson<T>(address: string, token?: string): Promise<T> {
  const headers: HeadersInit = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const response = await fetch(address, { cache: 'no-store', headers });
  if (!response.ok) throw new Error(`${address} answered ${response.status}`);
  return (await response.json()) as T;
}

/** The tables of devices with their columns, of a page that does not know them beforehand. */
export const fetchTables = (): Promise<Record<string, Record<string, 'text' | 'integer' | 'real'>>> => getJson('tables');

export const fetchUsers = (): Promise<User[]> => getJson('users');

const fetchToken = (user: User): Promise<Credentials> =>
  getJson(`token?user=${encodeURIComponent(user.id)}`);

const tokens = new Map<string, { token: Promise<Credentials>; at: number }>();

/** Asks the server as `user`, with a token that several questions share. */
export async function ask<T>(user: User, path: string, parameters: Record<string, string> = {}): Promise<T> {
  let known = tokens.get(user.id);
  if (!known || Date.now() - known.at > TOKEN_MS) {
    known = { token: fetchToken(user), at: Date.now() };
    known.token.catch(() => tokens.delete(user.id));
    tokens.set(user.id, known);
  }
  const query = new URLSearchParams(parameters).toString();
  return getJson<T>(query ? `${path}?${query}` : path, (await known.token).token);
}

interface Answer {
  transactions: {
    outcome: 'applied' | 'already_applied' | 'parked';
    dead_letter?: number;
    error?: { code: string; sqlstate?: string; message: string; op?: string; type?: string; id?: string };
  }[];
}

const KEEP = `insert or replace into upload_refusals (id, at, message, code, op, type, row_id, writes)
  values (?, ?, ?, ?, ?, ?, ?, ?)`;

/** Send transactions in their order. What the server refuses it puts aside. */
async function upload(
  client_id: string,
  transactions: CrudTransaction[],
  { token, endpoint }: Credentials
): Promise<Answer> {
  const response = await fetch(`${endpoint}/upload`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    body: JSON.stringify({ client_id, transactions })
  });
  if (!response.ok) throw new Error(reasonIn(await response.text()) || `status ${response.status}`);
  return (await response.json()) as Answer;
}

/** Keep what was refused in the table that the page shows. The same may come again, if this page is closed before. */
async function keepRefusals(database: CommonPowerSyncDatabase, answer: Answer, sent: CrudTransaction[]): Promise<void> {
  for (const [index, { dead_letter, error }] of answer.transactions.entries()) {
    if (!error) continue;
    await database.execute(KEEP, [
      String(dead_letter),
      new Date().toISOString(),
      error.message,
      error.sqlstate ?? error.code,
      error.op ?? null,
      error.type ?? null,
      error.id ?? null,
      JSON.stringify(sent[index]?.crud ?? [])
    ]);
  }
}

/** The description in the service's error body, or the body as it is. */
function reasonIn(body: string): string {
  try {
    const { error } = JSON.parse(body) as { error?: { description?: string } | string };
    return (typeof error === 'string' ? error : error?.description) ?? body;
  } catch {
    return body;
  }
}

/** Signs in as `user`, and sends the local writes of a database to the server, in the order in which they were made. */
export function connectorFor(user: User): PowerSyncBackendConnector {
  return {
    fetchCredentials: () => fetchToken(user),

    async uploadData(database: CommonPowerSyncDatabase) {
      const transactions: CrudTransaction[] = [];
      for await (const transaction of database.getCrudTransactions()) {
        transactions.push(transaction);
        if (transactions.length === BATCH) break;
      }
      const last = transactions.at(-1);
      if (!last) return;
      const answer = await upload(await database.getClientId(), transactions, await fetchToken(user));
      await keepRefusals(database, answer, transactions);
      await last.complete();
    }
  };
}
