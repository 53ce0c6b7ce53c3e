// How the page gets a token, where local writes go, and what becomes of those that the server refuses.
import { column, Table } from '@powersync/web';
import type { CommonPowerSyncDatabase, CrudTransaction, PowerSyncBackendConnector } from '@powersync/web';

const ENDPOINT = 'http://localhost:8080';

/** What the server refused, until the user has seen it. It stays on this device. */
export const upload_refusals = new Table(
  { at: column.text, message: column.text, code: column.text, writes: column.text },
  { localOnly: true }
);

interface Answer {
  transactions: { dead_letter?: number; error?: { message: string; code: string } }[];
}

export class Connector implements PowerSyncBackendConnector {
  constructor(private readonly user: string) {}

  async fetchCredentials() {
    // For development. In an app that others use, ask your login for a token of the person who signed in.
    const response = await fetch(`/development/token?user=${encodeURIComponent(this.user)}`);
    if (!response.ok) throw new Error(`no token: ${await response.text()}`);
    return { endpoint: ENDPOINT, token: await response.text() };
  }

  async uploadData(database: CommonPowerSyncDatabase) {
    const transactions: CrudTransaction[] = [];
    for await (const transaction of database.getCrudTransactions()) {
      if (transactions.push(transaction) === 100) break;
    }
    const last = transactions.at(-1);
    if (!last) return;
    const { endpoint, token } = await this.fetchCredentials();
    const response = await fetch(`${endpoint}/upload`, {
      method: 'POST',
      headers: { authorization: `Token ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ client_id: await database.getClientId(), transactions })
    });
    if (!response.ok) throw new Error(`upload: ${response.status} ${await response.text()}`); // and is called again
    const answer = (await response.json()) as Answer;
    for (const [number, { dead_letter, error }] of answer.transactions.entries()) {
      if (!error) continue;
      await database.execute(
        'INSERT OR REPLACE INTO upload_refusals (id, at, message, code, writes) VALUES (?, ?, ?, ?, ?)',
        [String(dead_letter), new Date().toISOString(), error.message, error.code, JSON.stringify(transactions[number]?.crud)]
      );
    }
    await last.complete();
  }
}
