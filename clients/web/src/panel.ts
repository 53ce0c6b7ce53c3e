// The view of one device: who it belongs to, how its sync is, its lists, and the to-dos of the chosen list.

import type { SyncStatus } from '@powersync/web';
import { Device, type SharedList, type View } from './device';
import { h, Rows, type RowView } from './dom';
import { Editable } from './editable';
import { Refusals } from './refusals';
import type { Todo } from './schema';
import type { User } from './server';
import { StatusLine } from './status';
import { Todos } from './todos';

export type Side = 'left' | 'right';

/** Who wants to know what happens on a device. */
export interface Listener {
  /** The screen shows a state of the device. */
  onView(side: Side, view: View): void;
  /** The person turns the network of a device off or on. */
  onOffline(side: Side, offline: boolean): void;
  /** The person asks why a row is there. */
  onAsk(todo: Todo): void;
}

export class Panel {
  readonly element: HTMLElement;
  readonly device: Device;

  private readonly names: Map<string, string>;
  private readonly status = new StatusLine();
  private readonly refusals: Refusals;
  private readonly todos: Todos;
  private view: View | undefined;
  private chosen: string | undefined;
  private justAdded: string | undefined;
  private lost: string | undefined;
  private scrolledTo: string | undefined;

  private readonly offline: HTMLButtonElement;
  private readonly listRows: Rows<SharedList>;
  private readonly listButtons = h('div', { class: 'lists', role: 'group', 'aria-label': 'Lists' });
  private readonly listName = new Editable('Name of the list', 'list-name', 80, (name) => void this.rename(name));
  private readonly listMembers = h('span', { class: 'members', 'data-testid': 'members' });
  private readonly shareButton = h('button', { type: 'button', class: 'quiet', 'data-testid': 'share' });
  private readonly newTodo = h('input', {
    placeholder: 'New to-do',
    'aria-label': 'New to-do',
    'data-testid': 'new-todo',
    maxlength: '200'
  });
  private readonly newList = h('input', {
    placeholder: 'New list',
    'aria-label': 'Name of a new list',
    'data-testid': 'new-list',
    maxlength: '80'
  });
  private readonly list = h('div', { class: 'list', hidden: true });
  private readonly empty = h('p', { class: 'note', 'data-testid': 'empty' }, 'Waiting for the first sync.');

  constructor(
    private readonly side: Side,
    user: User,
    private readonly other: User,
    users: User[],
    private readonly listener: Listener
  ) {
    this.names = new Map(users.map(({ id, name }) => [id, name]));
    this.device = new Device(user);
    this.refusals = new Refusals(this.device);
    this.todos = new Todos(this.device, () => this.newTodo.focus(), (todo) => listener.onAsk(todo));
    this.offline = h(
      'button',
      {
        type: 'button',
        role: 'switch',
        'aria-checked': 'false',
        class: 'switch',
        'data-testid': 'offline',
        onclick: () => this.setOffline(!this.isOffline())
      },
      'Offline'
    );
    this.listRows = new Rows(this.listButtons, (list) => this.listView(list));
    this.shareButton.addEventListener('click', () => void this.switchSharing());
    this.element = this.build(user);
    this.follow();
  }

  private build(user: User): HTMLElement {
    const submit = (work: () => Promise<void>) => (event: Event) => {
      event.preventDefault();
      void work();
    };
    this.list.append(
      h('div', { class: 'list-head' }, h('h3', {}, this.listName.element), this.listMembers, this.shareButton),
      h(
        'form',
        { class: 'add', onsubmit: submit(() => this.addTodo()) },
        this.newTodo,
        h('button', { type: 'submit', class: 'primary', 'data-testid': 'add-todo' }, 'Add')
      ),
      this.todos.element
    );
    return h(
      'section',
      {
        class: `panel device ${this.side}`,
        'aria-label': `Device of ${user.name}`,
        'data-testid': `panel-${this.side}`,
        'data-user': user.id
      },
      h(
        'header',
        {},
        h('span', { class: 'avatar', 'aria-hidden': 'true' }, user.name.slice(0, 1)),
        h('h2', {}, user.name),
        this.offline,
        this.status.element,
        this.status.progress
      ),
      this.refusals.element,
      h(
        'div',
        { class: 'list-bar' },
        this.listButtons,
        h(
          'form',
          { class: 'add-list', onsubmit: submit(() => this.addList()) },
          this.newList,
          h('button', { type: 'submit', class: 'quiet', 'data-testid': 'add-list', 'aria-label': 'Add the list' }, '+')
        )
      ),
      this.empty,
      this.list,
      h(
        'button',
        {
          type: 'button',
          class: 'quiet reset',
          'data-testid': 'reset',
          title: 'Forget the data on this device and sync it again',
          onclick: () => void this.reset()
        },
        'Reset this device'
      )
    );
  }

  private follow(): void {
    this.device.onStatus((status) => this.showStatus(status));
    this.device.onChange((view) => {
      this.view = view;
      this.status.showWaiting(view.waiting.length);
      this.showLists(view.lists);
      this.todos.show(view);
      this.refusals.show(view.refusals);
      this.listener.onView(this.side, view);
    });
    void this.device.goOnline();
  }

  private showStatus(status: SyncStatus): void {
    this.status.showStatus(status, this.isOffline());
    if (status.hasSynced) this.empty.textContent = 'No lists yet. Add one above.';
  }

  isOffline(): boolean {
    return this.offline.getAttribute('aria-checked') === 'true';
  }

  setOffline(offline: boolean): void {
    this.offline.setAttribute('aria-checked', String(offline));
    this.status.showOffline(offline);
    this.listener.onOffline(this.side, offline);
    void (offline ? this.device.goOffline() : this.device.goOnline());
  }

  private async reset(): Promise<void> {
    await this.device.reset();
    if (!this.isOffline()) await this.device.goOnline();
  }

  // Lists

  private get current(): SharedList | undefined {
    return this.view?.lists.find(({ id }) => id === this.chosen);
  }

  private isShared(list: SharedList): boolean {
    return list.owner_id !== this.device.user.id || list.guests.length > 0;
  }

  /** Whether both people on the page have the list: the best one to begin with. */
  private isCommon(list: SharedList): boolean {
    const people = [list.owner_id, ...list.guests];
    return people.includes(this.device.user.id) && people.includes(this.other.id);
  }

  private showLists(lists: SharedList[]): void {
    const isThere = lists.some(({ id }) => id === this.chosen);
    // A list that was added a moment ago is chosen before it is read.
    if (!isThere && (this.chosen === undefined || this.chosen !== this.justAdded)) {
      this.lost ??= this.chosen;
      this.choose((lists.find((list) => this.isCommon(list)) ?? lists[0])?.id);
    } else if (this.lost !== undefined && lists.some(({ id }) => id === this.lost)) {
      this.show(this.lost); // as when the server refused to delete it
    }
    this.listRows.show(lists);
    this.showChosen();
    this.scrollToChosen();
    if (isThere && this.chosen === this.justAdded) {
      this.justAdded = undefined;
      this.newTodo.focus();
    }
  }

  private choose(listId: string | undefined): void {
    if (this.chosen === listId) return;
    this.chosen = listId;
    this.device.choose(listId);
  }

  /** On a phone the lists are a strip that is wider than the screen. */
  private scrollToChosen(): void {
    const pressed = this.listButtons.querySelector<HTMLElement>('[aria-pressed=true]');
    if (!pressed || pressed.dataset['id'] === this.scrolledTo) return;
    this.scrolledTo = pressed.dataset['id'];
    const beside = (this.listButtons.clientWidth - pressed.clientWidth) / 2;
    this.listButtons.scrollLeft = pressed.offsetLeft - this.listButtons.offsetLeft - beside;
  }

  private showChosen(): void {
    const list = this.current;
    this.list.hidden = list === undefined;
    this.empty.hidden = list !== undefined;
    if (list === undefined) return;
    const owned = list.owner_id === this.device.user.id;
    const guests = list.guests.map((userId) => this.nameOf(userId)).join(', ');
    this.listName.show(list.name);
    this.listMembers.textContent = !owned
      ? `${this.nameOf(list.owner_id)}'s list, shared with ${guests || 'you'}`
      : guests
        ? `shared with ${guests}`
        : 'only you';
    this.shareButton.hidden = !owned;
    this.shareButton.textContent = this.isCommon(list)
      ? `Stop sharing with ${this.other.name}`
      : `Share with ${this.other.name}`;
  }

  private nameOf(userId: string): string {
    return userId === this.device.user.id ? 'you' : (this.names.get(userId) ?? 'someone else');
  }

  private listView(list: SharedList): RowView<SharedList> {
    const element = h('button', {
      type: 'button',
      class: 'list-button',
      'data-testid': 'list',
      'data-id': list.id,
      onclick: () => this.show(list.id)
    });
    return {
      element,
      update: (now) => {
        element.textContent = now.name;
        element.dataset['name'] = now.name;
        element.classList.toggle('shared', this.isShared(now));
        element.title = this.isShared(now) ? 'shared' : 'private';
        element.setAttribute('aria-pressed', String(now.id === this.chosen));
      }
    };
  }

  private async addList(): Promise<void> {
    const name = this.newList.value.trim();
    if (!name) return;
    this.newList.value = '';
    this.justAdded = await this.device.addList(name);
    this.choose(this.justAdded);
  }

  private async rename(name: string): Promise<void> {
    if (this.chosen !== undefined) await this.device.renameList(this.chosen, name);
  }

  private async switchSharing(): Promise<void> {
    const list = this.current;
    if (list === undefined) return;
    await (this.isCommon(list) ? this.device.unshare(list.id, this.other) : this.device.share(list.id, this.other));
  }

  private async addTodo(): Promise<void> {
    const title = this.newTodo.value.trim();
    if (!title || this.chosen === undefined) return;
    this.newTodo.value = '';
    await this.device.addTodo(this.chosen, title);
  }

  /** Open a list, as a click on it does. */
  show(listId: string): void {
    this.lost = undefined;
    this.choose(listId);
    this.listRows.show(this.lists);
    this.showChosen();
  }

  get lists(): SharedList[] {
    return this.view?.lists ?? [];
  }

  /** The to-dos that are on the screen. */
  get shown(): Todo[] {
    return this.view?.todos ?? [];
  }
}
