// What the server refused of a device's writes, why, and a way on. A conflict shows both versions.

import type { Device, Refusal } from './device';
import { h, Rows, type RowView } from './dom';

/** What the demo's conflict policy raises, see `demo.keep_titles`. */
const CHANGED = 'HW409';

const TABLES: Record<string, string> = { lists: 'the list', todos: 'the to-do', list_members: 'who shares the list' };
const VERBS: Record<string, string> = { PUT: 'add', PATCH: 'change', DELETE: 'delete' };

interface Change {
  todoId: string;
  mine: string;
  was: string;
}

/** The change of a title in a refused transaction. */
function changeIn({ writes }: Refusal): Change | undefined {
  for (const { type, id, data, old } of writes) {
    const mine = data?.['title'];
    if (type === 'todos' && typeof mine === 'string') return { todoId: id, mine, was: String(old?.['title'] ?? '') };
  }
  return undefined;
}

export class Refusals {
  readonly element = h('div', { class: 'refusals', 'data-testid': 'refusals' });

  private readonly cards: Rows<Refusal>;

  constructor(private readonly device: Device) {
    this.cards = new Rows(this.element, (refusal) => this.view(refusal));
  }

  /** Show them, newest first. Of several conflicts about one row the newest is the one that counts. */
  show(refusals: Refusal[]): void {
    const conflicts = new Set<string>();
    this.cards.show(
      refusals.filter((refusal) => {
        const todo = refusal.code === CHANGED ? changeIn(refusal)?.todoId : undefined;
        if (todo === undefined) return true;
        if (conflicts.has(todo)) return false;
        conflicts.add(todo);
        return true;
      })
    );
  }

  private view(refusal: Refusal): RowView<Refusal> {
    const change = refusal.code === CHANGED ? changeIn(refusal) : undefined;
    return change ? this.conflictCard(refusal, change) : this.plainCard(refusal);
  }

  private plainCard(first: Refusal): RowView<Refusal> {
    const what = h('p', { 'data-testid': 'refused-what' });
    const now = h('p', { 'data-testid': 'refused-now' });
    return {
      element: h(
        'div',
        { class: 'card', role: 'alert', 'data-testid': 'refused' },
        h('strong', { 'data-testid': 'refused-why' }, first.message),
        what,
        now,
        h('div', { class: 'choices' }, this.dismissal(first.id, 'Dismiss', 'dismiss'))
      ),
      update: (refusal) => {
        what.textContent = `The server refused to ${whatOf(refusal)}. ${kept(refusal.id)}`;
        now.textContent = nowOf(refusal);
      }
    };
  }

  private conflictCard({ id }: Refusal, { todoId, mine, was }: Change): RowView<Refusal> {
    const theirs = h('dd', { 'data-testid': 'theirs' });
    const again = h(
      'button',
      {
        type: 'button',
        class: 'primary',
        'data-testid': 'mine-again',
        onclick: () => void this.device.setTitle(todoId, mine).then(() => this.device.dismiss(id))
      },
      'Use mine'
    );
    const element = h(
      'div',
      { class: 'card', role: 'alert', 'data-testid': 'conflict' },
      h('strong', {}, 'Conflict: somebody else was faster'),
      h(
        'dl',
        {},
        h('dt', {}, 'It was'),
        h('dd', { class: 'was' }, was),
        h('dt', {}, 'You wrote'),
        h('dd', { 'data-testid': 'mine' }, mine),
        h('dt', {}, 'Now it is'),
        theirs
      ),
      h(
        'p',
        {},
        `Your change began from a title that is gone. The conflict policy of to-dos (demo.keep_titles) lets the first ` +
          `change stand. ${kept(id)}`
      ),
      h('div', { class: 'choices' }, again, this.dismissal(id, 'Keep theirs', 'keep-theirs'))
    );
    return {
      element,
      update: ({ name }) => {
        again.hidden = name === null || name === mine;
        theirs.textContent = name ?? 'deleted';
      }
    };
  }

  private dismissal(id: string, label: string, testId: string): HTMLElement {
    const dismiss = (): void => void this.device.dismiss(id);
    return h('button', { type: 'button', class: 'quiet', 'data-testid': testId, onclick: dismiss }, label);
  }
}

/** What was refused, as in "delete the list “Weekend”". */
function whatOf({ op, table, row, name, writes }: Refusal): string {
  const written = writes.find(({ id }) => id === row)?.data;
  const called = name ?? written?.['name'] ?? written?.['title'];
  const what = TABLES[table ?? ''] ?? 'a row';
  return `${VERBS[op ?? ''] ?? 'write'} ${what}${called ? ` “${String(called)}”` : ''}`;
}

/** What has become of the row on this device. */
function nowOf({ op, name }: Refusal): string {
  if (op === 'DELETE') return name === null ? '' : 'So it is back on this device.';
  return name === null ? 'So it is not on this device any more.' : 'So this device shows again what the server has.';
}

const kept = (letter: string): string => `What you sent is kept as dead letter ${letter}.`;
