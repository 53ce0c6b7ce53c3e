// Plays what a person would have to set up with two devices: a conflict, and a write that the server refuses.

import { h } from './dom';
import type { Panel } from './panel';

const PAUSE_MS = 900;
const ENDINGS = ['today', 'tomorrow', 'on Sunday'];
const ENDING = /^(.*?)(?: \((today|tomorrow|on Sunday)\))?$/s;
const BOTH = 'It takes both people online, with the same list open.';

interface Panels {
  left: Panel;
  right: Panel;
}

export class Plays {
  readonly element: HTMLElement;

  private readonly told = h('p', { class: 'told', role: 'status', 'data-testid': 'told' });
  private readonly buttons = [
    this.button('Show me a conflict', 'play-conflict', (panels) => this.conflict(panels)),
    this.button('Show me a refused write', 'play-refused', (panels) => this.refused(panels))
  ];

  constructor(private readonly panels: () => Panels) {
    this.element = h('div', { class: 'play' }, ...this.buttons, this.told);
  }

  private button(label: string, testId: string, play: (panels: Panels) => Promise<void>): HTMLButtonElement {
    const start = async (): Promise<void> => {
      const panels = this.panels();
      if (panels.left.isOffline() || panels.right.isOffline()) return this.tell(BOTH);
      for (const each of this.buttons) each.disabled = true;
      try {
        await play(panels);
      } finally {
        for (const each of this.buttons) each.disabled = false;
      }
    };
    return h('button', { type: 'button', class: 'outlined', 'data-testid': testId, onclick: () => void start() }, label);
  }

  /** One person goes offline, both change the same title, and the first comes back. */
  private async conflict({ left, right }: Panels): Promise<void> {
    const there = new Set(right.shown.map(({ id }) => id));
    const todo = left.shown.find(({ id }) => there.has(id));
    if (!todo) return this.tell(BOTH);
    const [, plain, when] = ENDING.exec(todo.title ?? '') ?? [];
    const [early, late] = ENDINGS.filter((each) => each !== when);
    const [ada, ben] = [left.device.user.name, right.device.user.name];
    await this.tell(`${ben} goes offline …`);
    right.setOffline(true);
    await this.tell(`… and changes a title, as ${ada} does.`);
    await right.device.setTitle(todo.id, `${plain} (${late})`);
    await left.device.setTitle(todo.id, `${plain} (${early})`);
    await left.device.sent();
    await this.comesBack(right);
  }

  /** One person deletes, offline, a list of the other's, which only its owner may do. */
  private async refused({ left, right }: Panels): Promise<void> {
    const list = right.lists.find(({ owner_id }) => owner_id === left.device.user.id);
    if (!list) return this.tell(`It takes a list that ${left.device.user.name} shares.`);
    const [ada, ben] = [left.device.user.name, right.device.user.name];
    right.show(list.id);
    await this.tell(`${ben} goes offline …`);
    right.setOffline(true);
    await this.tell(`… and deletes “${list.name}”, which is ${ada}'s. On this device it is gone.`);
    await right.device.deleteList(list.id);
    await this.tell('Only its owner may do that.');
    await this.comesBack(right);
  }

  private async comesBack(panel: Panel): Promise<void> {
    const { name } = panel.device.user;
    await this.tell(`${name} comes back:`);
    panel.setOffline(false);
    await panel.device.sent();
    panel.element.scrollIntoView({ block: 'start', behavior: 'smooth' }); // on a phone it is above
    await this.tell(`see ${name}'s side.`);
  }

  private async tell(text: string): Promise<void> {
    this.told.textContent = text;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
