// What the server put aside of a device's writes, with a way on. A conflict shows both versions.

import type { Device } from './device';
import { h } from './dom';
import type { Refusal } from './server';

/** What the demo's conflict policy raises, see `demo.keep_titles`. */
const CHANGED = 'HW409';
const GONE = 'HW_6113';

interface Change {
  todoId: string;
  mine: string;
  was: string;
}

/** The change of a title in a refused transaction. */
function changeIn({ writes }: Refusal): Change | undefined {
  for (const { table, id, opData, previousValues } of writes) {
    const mine: unknown = opData?.['title'];
    if (table === 'todos' && typeof mine === 'string')
      return { todoId: id, mine, was: String(previousValues?.['title'] ?? '') };
  }
  return undefined;
}

export class Refusals {
  readonly element = h('div', { class: 'refusals', 'data-testid': 'refusals' });

  private readonly cards = new Map<string, () => void>();

  constructor(private readonly device: Device) {}

  add(refusal: Refusal): void {
    const change = changeIn(refusal);
    if (refusal.sqlstate === CHANGED && change) this.addConflict(refusal, change);
    else this.addCard(crypto.randomUUID(), (close) => this.plainCard(refusal, close));
  }

  clear(): void {
    for (const close of this.cards.values()) close();
  }

  /** One card for each row: the newest attempt is the one that counts. */
  private addCard(key: string, build: (close: () => void) => { element: HTMLElement; stop?: () => void }): void {
    this.cards.get(key)?.();
    const close = (): void => {
      element.remove();
      stop?.();
      this.cards.delete(key);
    };
    const { element, stop } = build(close);
    this.cards.set(key, close);
    this.element.append(element);
  }

  private plainCard({ code, reason, letter }: Refusal, close: () => void): { element: HTMLElement } {
    const gone = code === GONE;
    return {
      element: h(
        'div',
        { class: 'card', role: 'alert', 'data-testid': 'refused' },
        h('strong', {}, gone ? 'Too late: it was deleted meanwhile' : 'The server refused a change'),
        h('p', {}, gone ? 'There is nothing left to change. ' : `${reason} `, kept(letter)),
        h('div', { class: 'choices' }, h('button', { type: 'button', class: 'quiet', onclick: close }, 'Dismiss'))
      )
    };
  }

  private addConflict({ letter }: Refusal, { todoId, mine, was }: Change): void {
    this.addCard(todoId, (close) => {
      const theirs = h('dd', { 'data-testid': 'theirs' });
      const again = h(
        'button',
        {
          type: 'button',
          class: 'primary',
          'data-testid': 'mine-again',
          onclick: () => void this.device.setTitle(todoId, mine).then(close)
        },
        'Use mine'
      );
      const stop = this.device.onTitle(todoId, (title) => {
        again.hidden = title === undefined || title === mine;
        theirs.textContent = title ?? 'deleted';
      });
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
          'Your change began from a title that is gone. The conflict policy of to-dos (demo.keep_titles) lets the ' +
            'first change stand. ',
          kept(letter)
        ),
        h(
          'div',
          { class: 'choices' },
          again,
          h('button', { type: 'button', class: 'quiet', 'data-testid': 'keep-theirs', onclick: close }, 'Keep theirs')
        )
      );
      return { element, stop };
    });
  }
}

const kept = (letter: number | null): string =>
  letter === null ? '' : `What you sent is kept as dead letter ${letter}.`;
