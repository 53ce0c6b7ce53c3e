// The sync rules, with the lines that let one row through, and what the service says of it for each person.

import { h } from '../dom';
import type { Side } from '../panel';
import { ask, type User } from '../server';
import type { Happening, Lines, Op } from './story';
import type { Words } from './words';

const SIDES: Side[] = ['left', 'right'];

interface Verdict {
  included: boolean;
  because: string;
  ways: { bucket: string; stream: string; op_id: number; lines: Lines }[];
}

export interface RowName {
  table: string;
  id: string;
  title: string;
}

export class Rules {
  readonly element: HTMLElement;

  private readonly verdicts = h('ul', { class: 'verdicts', 'data-testid': 'verdicts' });
  private readonly subject = h('p', { class: 'note', 'data-testid': 'subject' });
  private readonly code = h('div', { class: 'rule-text', tabindex: '0', role: 'region', 'aria-label': 'Sync rules' });
  private lines: HTMLElement[] = [];
  private asked = 0;

  constructor(
    private readonly users: Record<Side, User>,
    private readonly words: Words
  ) {
    this.subject.append(
      'The rules decide which rows each person gets.',
      h('span', { class: 'with-room' }, ' Ask with the ? of a row.')
    );
    this.element = h('div', {}, this.subject, this.verdicts, this.code);
  }

  setText(text: string): void {
    this.lines = text
      .trimEnd()
      .split('\n')
      .map((line, index) => h('code', { 'data-line': String(index + 1) }, line || ' '));
    this.code.replaceChildren(h('pre', {}, ...this.lines));
  }

  /** Explain the first row of a commit. */
  async explainHappening({ ops, concerned }: Happening): Promise<void> {
    const op = ops.find(({ table }) => table === 'todos') ?? ops[0];
    if (!op) return;
    const title = String(op.data?.['title'] ?? op.data?.['name'] ?? '');
    await this.explain({ table: op.table, id: op.id, title }, op, concerned);
  }

  /** Ask the service about a row, for both people. `op` is the newest one, of a row that `had` people had before it. */
  async explain(row: RowName, op?: Op, had = new Set<Side>()): Promise<void> {
    const turn = ++this.asked;
    const answers = await Promise.all(SIDES.map((side) => this.verdictOf(side, row)));
    if (turn !== this.asked) return; // somebody asked for another row meanwhile
    const what = row.title ? `“${row.title}”` : `a row of ${row.table}`;
    this.subject.replaceChildren('Who gets ', h('b', {}, what), ', and by which line:');
    this.verdicts.replaceChildren(
      ...SIDES.map((side, index) => this.verdictView(side, answers[index], op?.op === 'REMOVE' && had.has(side)))
    );
    const found = answers.flatMap((answer) => answer?.ways.map(({ lines }) => lines) ?? []);
    this.mark(found.length > 0 || !op ? found : [op.lines]);
  }

  private async verdictOf(side: Side, { table, id }: RowName): Promise<Verdict | undefined> {
    try {
      return await ask<Verdict>(this.users[side], 'explain', { table, id });
    } catch (error) {
      console.warn(error);
      return undefined;
    }
  }

  private verdictView(side: Side, verdict: Verdict | undefined, had: boolean): HTMLElement {
    const { name } = this.users[side];
    const lines = [...new Set(verdict?.ways.flatMap(({ lines }) => lines.giving) ?? [])].sort((a, b) => a - b);
    const text = !verdict
      ? 'no answer'
      : verdict.included
        ? `gets it, by line${lines.length > 1 ? 's' : ''} ${lines.join(' and ')}`
        : had && verdict.because.startsWith('the store has no row')
          ? 'had it, and it is gone'
          : `does not get it: ${this.words.inText(verdict.because)}`;
    return h(
      'li',
      { class: side, 'data-testid': `verdict-${side}`, 'data-included': String(verdict?.included ?? false) },
      h('b', {}, name),
      ` ${text}`
    );
  }

  private mark(found: Lines[]): void {
    const inside = (number: number) => found.some(({ first, last }) => first <= number && number <= last);
    const giving = new Set(found.flatMap((lines) => lines.giving));
    for (const [index, line] of this.lines.entries()) {
      line.classList.toggle('inside', inside(index + 1));
      line.classList.toggle('giving', giving.has(index + 1));
    }
    const first = this.lines.find((line) => line.classList.contains('inside'));
    if (first) this.code.scrollTop = first.offsetTop - 12; // the box is what it is offset from
  }
}
