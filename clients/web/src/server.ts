// What the demo asks of the server that serves it. All addresses are relative to the page.

import type { CommonPowerSyncDatabase, CrudTransaction, PowerSyncBackendConnector } from '@powersync/web';

export interface User {
  id: string;
  name: string;
}

/** A write that the server will not take, however often it is sent. */
export class Refused extends Error {}

async function getJson<T>(address: string): Promise<T> {
  const response = await fetch(address, { cache: 'no-store' });
  if (!response.ok) throw new Error(`${address} answered ${response.status}`);
  return (await response.json()) as T;
}

export const fetchUsers = (): Promise<User[]> => getJson('users');

const fetchToken = (user: User): Promise<{ token: string; endpoint: string }> =>
  getJson(`token?user=${encodeURIComponent(user.id)}`);

async function upload(transaction: CrudTransaction, token: string): Promise<void> {
  const batch = transaction.crud.map(({ op, table, id, opData }) => ({ op, type: table, id, data: opData ?? null }));
  const response = await fetch('upload', {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    body: JSON.stringify({ batch })
  });
  if (response.ok) return;
  const reason = reasonIn(await response.text()) || `status ${response.status}`;
  const mayPassLater = response.status >= 500 || response.status === 401 || response.status === 429;
  throw mayPassLater ? new Error(reason) : new Refused(reason);
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

/** Signs in as `user`, and sends the local writes of a database to the server, a transaction at a time. */
export function connectorFor(user: User, onRefused: (reason: string) => void): PowerSyncBackendConnector {
  return {
    fetchCredentials: () => fetchToken(user),

    async uploadData(database: CommonPowerSyncDatabase) {
      const transaction = await database.getNextCrudTransaction();
      if (!transaction) return;
      const { token } = await fetchToken(user);
      try {
        await upload(transaction, token);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        // Kept in the queue it would block every later write; given up, the server's version comes back.
        onRefused(error.message);
      }
      await transaction.complete();
    }
  };
}
