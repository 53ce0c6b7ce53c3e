// One device with somebody's own tables: the rows of the chosen one, as its SQLite has them.

import { PowerSyncDatabase, WASQLiteVFS, type CommonPowerSyncDatabase, type Schema } from '@powersync/web';
import type { Backstage } from '../backstage/backstage';
import { BUCKETS, type Bucket } from '../device';
import { h } from '../dom';
import type { Side } from '../panel';
import { connectorFor, type User } from '../server';
import { StatusLine } from '../status';

type Row = { id: string } & Record<string, unknown>;

const SHOWN = 100;
const quoted = (name: string) => `"${name.replaceAll('"', '""')}"`;

export class TablesPanel {
  readonly element: HTMLElement;

  private readonly db: CommonPowerSyncDatabase;
  private readonly status = new StatusLine();
  private readonly tables = h('select', { 'aria-label': 'Table', 'data-testid': 'table' });
  private readonly rows = h('tbody', {});
  private readonly head = h('thead', {});
  private readonly note = h('p', { class: 'note', 'data-testid': 'count' }, 'Waiting for the first sync.');

  constructor(
    private readonly side: Side,
    user: User,
    private readonly schema: Schema,
    private readonly backstage: Backstage,
    people: HTMLElement
  ) {
    this.db = new PowerSyncDatabase({
      schema,
      database: { dbFilename: `own-${side}-${encodeURIComponent(user.id)}.db`, vfs: WASQLiteVFS.OPFSCoopSyncVFS }
    });
    this.tables.append(...schema.tables.map(({ name }) => new Option(name)));
    this.tables.addEventListener('change', () => void this.show());
    this.element = h(
      'section',
      { class: `panel device ${side}`, 'aria-label': `Device of ${user.name}`, 'data-testid': `panel-${side}` },
      h('header', {}, h('h2', {}, people), this.status.element, this.status.progress),
      this.tables,
      this.note,
      h('div', { class: 'own-rows', tabindex: '0', role: 'region', 'aria-label': `Rows of ${user.name}, ${side}` }, h('table', {}, this.head, this.rows))
    );
    this.db.registerListener({ statusChanged: (status) => this.status.showStatus(status, false) });
    const names = [...schema.tables.map(({ name }) => name), 'ps_buckets', 'ps_oplog'];
    this.db.onChangeWithCallback({ onChange: () => this.show() }, { tables: names, throttleMs: 1 });
    void this.show();
    void this.db.connect(connectorFor(user), { retryDelayMs: 1000 });
  }

  private async show(): Promise<void> {
    const name = this.tables.value;
    const [rows, total, buckets] = await this.db.readTransaction(async (tx) => [
      await tx.getAll<Row>(`select * from ${quoted(name)} order by id limit ${SHOWN}`),
      (await tx.get<{ total: number }>(`select count(*) as total from ${quoted(name)}`)).total,
      await tx.getAll<Bucket & { last_applied_op: number }>(BUCKETS)
    ]);
    const columns = this.schema.tables.find((table) => table.name === name)?.columns.map((each) => each.name) ?? [];
    this.head.replaceChildren(h('tr', {}, ...['id', ...columns, 'why'].map((each) => h('th', {}, each))));
    this.rows.replaceChildren(...rows.map((row) => this.view(name, columns, row)));
    if (buckets.length > 0 || total > 0) this.note.textContent = `${total} rows${total > SHOWN ? `, ${SHOWN} shown` : ''}`;
    const applied = Math.min(...buckets.map(({ last_applied_op }) => last_applied_op));
    this.backstage.onBuckets(this.side, { buckets, applied });
  }

  private view(table: string, columns: string[], row: Row): HTMLElement {
    const title = String(columns.map((name) => row[name]).find((value) => typeof value === 'string') ?? row.id);
    const why = h(
      'button',
      {
        type: 'button',
        class: 'quiet',
        'data-testid': 'why',
        'aria-label': `Who gets ${row.id}, and why`,
        onclick: () => this.backstage.explain({ table, id: row.id, title })
      },
      '?'
    );
    const cells = ['id', ...columns].map((name) => h('td', {}, String(row[name] ?? '')));
    return h('tr', { 'data-testid': 'row', 'data-id': row.id }, ...cells, h('td', {}, why));
  }
}
