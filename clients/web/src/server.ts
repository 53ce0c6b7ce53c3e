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

async function getJson<T>(address: string): Promise<T> {
  const response = await fetch(address, { cache: 'no-store' });
  if (!response.ok) throw new Error(`${address} answered ${response.status}`);
  return (await response.json()) as T;
}

export const fetchUsers = (): Promise<User[]> => getJson('users');

const fetchToken = (user: User): Promise<Credentials> =>
  getJson(`token?user=${encodeURIComponent(user.id)}`);

interface Answer {
  transactions: { outcome: 'applied' | 'already_applied' | 'parked'; error?: { description: string } }[];
}

/** Send transactions in their order. What the server refuses for good it puts aside; the reasons are returned. */
async function upload(client_id: string, transactions: CrudTransaction[], { token, endpoint }: Credentials): Promise<string[]> {
  const response = await fetch(`${endpoint}/upload`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    body: JSON.stringify({ client_id, transactions })
  });
  if (!response.ok) throw new Error(reasonIn(await response.text()) || `status ${response.status}`);
  const answer = (await response.json()) as Answer;
  return answer.transactions.flatMap(({ error }) => (error ? [error.description] : []));
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
export function connectorFor(user: User, onRefused: (reason: string) => void): PowerSyncBackendConnector {
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
      const refused = await upload(await database.getClientId(), transactions, await fetchToken(user));
      refused.forEach(onRefused);
      await last.complete();
    }
  };
}
