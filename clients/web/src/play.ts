// Plays a conflict: one person goes offline, both change the same title, and the first comes back.

import { h } from './dom';
import type { Panel } from './panel';

const PAUSE_MS = 900;
const ENDINGS = ['today', 'tomorrow', 'on Sunday'];
const ENDING = /^(.*?)(?: \((today|tomorrow|on Sunday)\))?$/s;

export class ConflictPlay {
  readonly element: HTMLElement;

  private readonly told = h('p', { class: 'told', role: 'status', 'data-testid': 'told' });
  private readonly start = h(
    'button',
    { type: 'button', class: 'outlined', 'data-testid': 'play-conflict', onclick: () => void this.play() },
    'Show me a conflict'
  );

  constructor(private readonly panels: () => { left: Panel; right: Panel }) {
    this.element = h('div', { class: 'play' }, this.start, this.told);
  }

  private async play(): Promise<void> {
    const { left, right } = this.panels();
    const there = new Set(right.shown.map(({ id }) => id));
    const todo = left.shown.find(({ id }) => there.has(id));
    if (!todo || left.isOffline() || right.isOffline())
      return this.tell('It takes both people online, with the same list open.');
    this.start.disabled = true;
    try {
      const [, plain, when] = ENDING.exec(todo.title ?? '') ?? [];
      const [early, late] = ENDINGS.filter((each) => each !== when);
      const [ada, ben] = [left.device.user.name, right.device.user.name];
      await this.tell(`${ben} goes offline …`);
      right.setOffline(true);
      await this.tell(`… and changes a title, as ${ada} does.`);
      await right.device.setTitle(todo.id, `${plain} (${late})`);
      await left.device.setTitle(todo.id, `${plain} (${early})`);
      await left.device.sent();
      await this.tell(`${ben} comes back:`);
      right.setOffline(false);
      await right.device.sent();
      await this.tell(`see ${ben}'s side.`);
    } finally {
      this.start.disabled = false;
    }
  }

  private async tell(text: string): Promise<void> {
    this.told.textContent = text;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
