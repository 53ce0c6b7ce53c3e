// The writes that a device has made and not sent yet.

import type { WaitingWrite } from '../device';
import { h, Rows, type RowView } from '../dom';
import type { Side } from '../panel';
import type { User } from '../server';
import type { Words } from './words';

type Row = WaitingWrite & { side: Side };

const SHOWN = 6;

export class Waiting {
  readonly element: HTMLElement;

  private readonly rows: Rows<Row>;
  private readonly more = h('p', { class: 'note' });
  private readonly writes: Record<Side, WaitingWrite[]> = { left: [], right: [] };

  constructor(
    private readonly users: Record<Side, User>,
    private readonly words: Words
  ) {
    const items = h('ul', { 'data-testid': 'waiting' });
    this.rows = new Rows(items, (row) => this.view(row));
    this.element = h('div', { class: 'waiting', hidden: true }, h('h3', {}, 'Waiting to be sent'), items, this.more);
  }

  show(side: Side, writes: WaitingWrite[]): void {
    this.writes[side] = writes;
    const all = (['left', 'right'] as const).flatMap((side) =>
      this.writes[side].map((write) => ({ ...write, side, id: `${side} ${write.id}` }))
    );
    this.element.hidden = all.length === 0;
    this.rows.show(all.slice(0, SHOWN));
    this.more.hidden = all.length <= SHOWN;
    this.more.textContent = `and ${all.length - SHOWN} more`;
  }

  private view(row: Row): RowView<Row> {
    const values = Object.entries(row.data).map(([name, value]) => `${name} = ${this.valueOf(value)}`);
    const element = h(
      'li',
      { class: row.side },
      h('b', {}, this.users[row.side].name),
      ` ${row.op} ${row.table} `,
      h('code', {}, values.join(', ') || this.words.name(row.row))
    );
    return { element, update: () => {} };
  }

  private valueOf(value: unknown): string {
    return typeof value === 'string' ? `'${this.words.inText(value)}'` : String(value);
  }
}
