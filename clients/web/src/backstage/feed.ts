// The latest commits, newest first: who wrote what, the SQL, the ops, and how long each screen took.

import { h, Rows, type RowView } from '../dom';
import type { Side } from '../panel';
import type { User } from '../server';
import type { Arrival, Happening, Op, Write } from './story';
import type { Words } from './words';

const SIDES: Side[] = ['left', 'right'];
const SHOWN = 8;

type Row = Happening & { id: string };

export class Feed {
  readonly element: HTMLElement;

  private readonly rows: Rows<Row>;
  private readonly hint = h(
    'p',
    { class: 'note', 'data-testid': 'no-story' },
    'Change something, and see here how it gets to the devices.'
  );
  private chosen: number | undefined;
  private latest: Happening[] = [];

  constructor(
    private readonly users: Record<Side, User>,
    private readonly words: Words,
    private readonly onChosen: (happening: Happening) => void
  ) {
    const items = h('ol', { class: 'feed', 'data-testid': 'feed' });
    this.rows = new Rows(items, (row) => this.view(row));
    this.element = h('div', {}, this.hint, items);
  }

  /** Show the commits. A new one is chosen by itself. */
  show(newestFirst: Happening[]): void {
    const newest = newestFirst[0];
    const isNew = newest !== undefined && newest.op_id !== this.latest[0]?.op_id;
    this.latest = newestFirst.slice(0, SHOWN);
    this.hint.hidden = this.latest.length > 0;
    if (isNew) this.choose(newest);
    else this.draw();
  }

  private choose(happening: Happening): void {
    this.chosen = happening.op_id;
    this.draw();
    this.onChosen(happening);
  }

  private draw(): void {
    this.rows.show(this.latest.map((each) => ({ ...each, id: String(each.op_id) })));
  }

  private view(first: Row): RowView<Row> {
    let row = first;
    const head = h('button', { type: 'button', class: 'head', onclick: () => this.choose(row) });
    const body = h('div', { class: 'body' });
    const element = h('li', { 'data-testid': 'happening' }, head, body);
    return {
      element,
      update: (now) => {
        row = now;
        const open = now.op_id === this.chosen;
        head.setAttribute('aria-expanded', String(open));
        head.replaceChildren(...this.headOf(now));
        body.hidden = !open;
        if (open) body.replaceChildren(...this.bodyOf(now));
      }
    };
  }

  private headOf(now: Happening): Node[] {
    const times = SIDES.flatMap((side) => {
      const arrival = now.arrivals[side];
      const { id, name } = this.users[side];
      // Whoever wrote it saw it at once.
      if (!arrival || now.writes.some(({ by }) => by === id)) return [];
      const label = `${name} ${spell(arrival.ms - arrival.offline)}`;
      const title = arrival.offline > 0 ? 'from when the device was online again to the screen' : 'from the commit to the screen';
      return [h('span', { class: `time ${side}`, 'data-testid': `time-${side}`, title }, label)];
    });
    return [
      h('span', { class: 'what', 'data-testid': 'what' }, this.whatOf(now)),
      h('span', { class: 'times' }, ...times)
    ];
  }

  private whatOf({ writes, ops, more }: Happening): string {
    const write = writes.at(-1);
    const number = ops.length + more;
    const verb = write ? (/^\s*(\w+)/.exec(write.sql)?.[1] ?? 'write').toLowerCase() : 'change';
    const who = write ? this.whoOf(write) : 'Somebody';
    const op = ops[0];
    const title = op && (op.data?.['title'] ?? op.data?.['name']);
    const rows = number > 1 ? `${number} rows` : title ? `“${String(title)}”` : (op?.table ?? 'a row');
    return `${who}: ${verb} ${rows}`;
  }

  private whoOf({ by }: Write): string {
    return by === null ? 'SQL by hand' : this.words.name(by);
  }

  private bodyOf(now: Happening): Node[] {
    const sql = now.writes.map((write) =>
      h('pre', { tabindex: '0', role: 'group', 'data-testid': 'sql', 'aria-label': `SQL of ${this.whoOf(write)}` }, tidy(write.sql))
    );
    const at = new Date(now.committed * 1000).toLocaleTimeString();
    return [
      step('Written', ...(sql.length > 0 ? sql : ['The statement is not known: the log of Postgres has rows.'])),
      step('Committed', h('code', {}, now.lsn), ` at ${at}`),
      step('Op', ...now.ops.slice(0, 3).map((op) => this.opOf(op)), ...this.moreOf(now)),
      step('On screen', ...SIDES.map((side) => this.screenOf(side, now)))
    ];
  }

  private opOf({ op, op_id, bucket }: Op): HTMLElement {
    const { stream, about } = this.words.bucket(bucket);
    return h(
      'span',
      { class: 'op', 'data-testid': 'op' },
      h('b', { class: op.toLowerCase() }, op),
      ' ',
      h('code', {}, String(op_id)),
      ` in bucket ${stream}${about ? ` · ${about}` : ''}`
    );
  }

  private moreOf({ ops, more }: Happening): Node[] {
    const rest = Math.max(0, ops.length - 3) + more;
    return rest > 0 ? [h('span', { class: 'op' }, `and ${rest} more`)] : [];
  }

  private screenOf(side: Side, happening: Happening): HTMLElement {
    const text = this.fateOf(side, happening);
    return h('span', { class: `op screen ${side}`, 'data-testid': `screen-${side}` }, `${this.users[side].name}: ${text}`);
  }

  private fateOf(side: Side, { arrivals, concerned, writes }: Happening): string {
    const arrival = arrivals[side];
    const own = writes.some(({ by }) => by === this.users[side].id);
    if (arrival && own) return `at once; confirmed ${spell(arrival.ms)} after the commit`;
    if (arrival?.offline)
      return (
        `${spell(arrival.ms - arrival.offline)} after it was online again: to connect, send its own changes, and ` +
        `receive (${spell(arrival.offline)} offline since the commit)${movesOf(arrival)}`
      );
    if (arrival) return `${spell(arrival.ms)} after the commit${movesOf(arrival)}`;
    return concerned.has(side) ? 'on its way, or offline' : 'not concerned';
  }
}

const spell = (ms: number): string => (ms < 10_000 ? `${Math.round(ms)} ms` : `${Math.round(ms / 1000)} s`);

const movesOf = ({ gained, lost }: Arrival): string =>
  [gained.length && `${gained.length} buckets more`, lost.length && `${lost.length} buckets less`]
    .filter(Boolean)
    .map((text) => `, ${text}`)
    .join('');

const step = (name: string, ...content: (Node | string)[]): HTMLElement =>
  h('div', { class: 'step' }, h('span', { class: 'label' }, name), h('div', {}, ...content));

/** A statement without what only a program needs: quotes around plain names, and conditions that are always true. */
const tidy = (sql: string): string =>
  sql.replace(/"([a-z_][a-z0-9_]*)"/g, '$1').replace(/ and true$/, '').replace(/::pg_catalog\.\w+/g, '').trim();
