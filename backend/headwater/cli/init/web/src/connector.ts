// How the page gets a token, and where local writes go.
import type { CommonPowerSyncDatabase, CrudTransaction, PowerSyncBackendConnector } from '@powersync/web';

const ENDPOINT = 'http://localhost:8080';

/** A write that the server refused: it is undone here, and kept there (`headwater upload list`). */
export interface Refusal {
  code: string;
  description: string;
}

export class Connector implements PowerSyncBackendConnector {
  constructor(
    private readonly user: string,
    private readonly onRefused: (refusal: Refusal) => void
  ) {}

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
    const answer = (await response.json()) as { transactions: { error?: Refusal }[] };
    answer.transactions.forEach(({ error }) => error && this.onRefused(error));
    await last.complete();
  }
}
