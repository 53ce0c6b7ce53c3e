// The view of one device: who it belongs to, how its sync is, its lists, and the to-dos of the chosen list.

import type { SyncStatus } from '@powersync/web';
import { Device, type SharedList } from './device';
import { h, Rows, type RowView } from './dom';
import type { Todo } from './schema';
import type { User } from './server';
import { StatusLine } from './status';

export class Panel {
  readonly element: HTMLElement;

  private readonly device: Device;
  private readonly names: Map<string, string>;
  private readonly status = new StatusLine();
  private lists: SharedList[] = [];
  private chosen: string | undefined;
  private justAdded: string | undefined;
  private stopTodos = (): void => {};

  private readonly offline: HTMLButtonElement;
  private readonly listRows: Rows<SharedList>;
  private readonly todoRows: Rows<Todo>;
  private readonly listButtons = h('div', { class: 'lists', role: 'group', 'aria-label': 'Lists' });
  private readonly todoItems = h('ul', { class: 'todos', 'data-testid': 'todos' });
  private readonly listName = h('h3', { 'data-testid': 'list-name' });
  private readonly listMembers = h('span', { class: 'members', 'data-testid': 'members' });
  private readonly shareButton = h('button', { type: 'button', class: 'quiet', 'data-testid': 'share' });
  private readonly newTodo = h('input', {
    placeholder: 'What needs doing?',
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
  private readonly more = h('p', { class: 'note' });
  private readonly list = h('div', { class: 'list', hidden: true });
  private readonly empty = h('p', { class: 'note', 'data-testid': 'empty' }, 'Waiting for the first sync.');
  private readonly refused = h('p', { class: 'failure', role: 'alert', 'data-testid': 'refused', hidden: true });

  constructor(
    side: 'left' | 'right',
    user: User,
    private readonly other: User,
    users: User[]
  ) {
    this.names = new Map(users.map(({ id, name }) => [id, name]));
    this.device = new Device(user, (reason) => this.showRefused(reason));
    this.offline = h(
      'button',
      {
        type: 'button',
        role: 'switch',
        'aria-checked': 'false',
        class: 'switch',
        'data-testid': 'offline',
        onclick: () => this.switchOffline()
      },
      'Offline'
    );
    this.listRows = new Rows(this.listButtons, (list) => this.listView(list));
    this.todoRows = new Rows(this.todoItems, (todo) => this.todoView(todo));
    this.shareButton.addEventListener('click', () => void this.switchSharing());
    this.element = this.build(side, user);
    this.follow();
  }

  private build(side: string, user: User): HTMLElement {
    const submit = (work: () => Promise<void>) => (event: Event) => {
      event.preventDefault();
      void work();
    };
    this.list.append(
      h('div', { class: 'list-head' }, this.listName, this.listMembers, this.shareButton),
      h(
        'form',
        { class: 'add', onsubmit: submit(() => this.addTodo()) },
        this.newTodo,
        h('button', { type: 'submit', class: 'primary', 'data-testid': 'add-todo' }, 'Add')
      ),
      this.todoItems,
      this.more
    );
    return h(
      'section',
      {
        class: `panel ${side}`,
        'aria-label': `Device of ${user.name}`,
        'data-testid': `panel-${side}`,
        'data-user': user.id
      },
      h(
        'header',
        {},
        h('span', { class: 'avatar', 'aria-hidden': 'true' }, user.name.slice(0, 1)),
        h('div', { class: 'who' }, h('h2', {}, user.name), this.status.element),
        h(
          'button',
          {
            type: 'button',
            class: 'quiet',
            'data-testid': 'reset',
            title: 'Forget the data on this device and sync it again',
            onclick: () => void this.reset()
          },
          'Reset'
        ),
        this.offline
      ),
      this.status.progress,
      this.refused,
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
      this.list
    );
  }

  private follow(): void {
    this.device.onStatus((status) => this.showStatus(status));
    this.device.onWaitingWrites((count) => this.status.showWaiting(count));
    this.device.onLists((lists) => {
      this.lists = lists;
      this.showLists();
    });
    void this.device.goOnline();
  }

  private showStatus(status: SyncStatus): void {
    this.status.showStatus(status, this.isOffline());
    if (status.hasSynced) this.empty.textContent = 'No lists yet. Add one above.';
  }

  private isOffline(): boolean {
    return this.offline.getAttribute('aria-checked') === 'true';
  }

  private switchOffline(): void {
    const offline = !this.isOffline();
    this.offline.setAttribute('aria-checked', String(offline));
    this.status.showOffline(offline);
    void (offline ? this.device.goOffline() : this.device.goOnline());
  }

  private async reset(): Promise<void> {
    await this.device.reset();
    this.refused.hidden = true;
    if (!this.isOffline()) await this.device.goOnline();
  }

  private showRefused(reason: string): void {
    this.refused.textContent = `The server refused a change: ${reason}`;
    this.refused.hidden = false;
  }

  // Lists

  private isShared(list: SharedList): boolean {
    return list.owner_id !== this.device.user.id || list.guests.length > 0;
  }

  /** Whether both people on the page have the list: the best one to begin with. */
  private isCommon(list: SharedList): boolean {
    const people = [list.owner_id, ...list.guests];
    return people.includes(this.device.user.id) && people.includes(this.other.id);
  }

  private showLists(): void {
    const isThere = this.lists.some(({ id }) => id === this.chosen);
    if (!isThere) {
      if (this.chosen !== undefined && this.chosen === this.justAdded) return;
      this.choose((this.lists.find((list) => this.isCommon(list)) ?? this.lists[0])?.id);
    }
    this.listRows.show(this.lists);
    this.showChosen();
    if (isThere && this.chosen === this.justAdded) {
      this.justAdded = undefined;
      this.newTodo.focus();
    }
  }

  private choose(listId: string | undefined): void {
    this.chosen = listId;
    this.stopTodos();
    this.todoRows.show([]);
    if (listId === undefined) return;
    this.stopTodos = this.device.onTodos(listId, (todos, total) => {
      this.todoRows.show(todos);
      this.more.hidden = total > 0 && total === todos.length;
      this.more.textContent = total === 0 ? 'Nothing to do.' : `and ${total - todos.length} more`;
    });
  }

  private showChosen(): void {
    const list = this.lists.find(({ id }) => id === this.chosen);
    this.list.hidden = list === undefined;
    this.empty.hidden = list !== undefined;
    if (list === undefined) return;
    const owned = list.owner_id === this.device.user.id;
    const guests = list.guests.map((userId) => this.nameOf(userId)).join(', ');
    this.listName.textContent = list.name;
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
      onclick: () => {
        this.choose(list.id);
        this.showLists();
      }
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
    this.showLists();
  }

  private async switchSharing(): Promise<void> {
    const list = this.lists.find(({ id }) => id === this.chosen);
    if (list === undefined) return;
    await (this.isCommon(list) ? this.device.unshare(list.id, this.other) : this.device.share(list.id, this.other));
  }

  // To-dos

  private todoView(todo: Todo): RowView<Todo> {
    const box = h('input', {
      type: 'checkbox',
      'data-testid': 'todo-done',
      onchange: () => void this.device.setDone(todo.id, box.checked)
    });
    const title = h('span', { class: 'title', 'data-testid': 'todo-title' });
    const notes = h('span', { class: 'notes' });
    const remove = h(
      'button',
      {
        type: 'button',
        class: 'quiet delete',
        'data-testid': 'todo-delete',
        onclick: () => void this.deleteTodo(todo.id)
      },
      '×'
    );
    const element = h(
      'li',
      { 'data-testid': 'todo', 'data-id': todo.id },
      h('label', {}, box, h('span', { class: 'text' }, title, notes)),
      remove
    );
    return {
      element,
      update: (now) => {
        box.checked = now.done === 1;
        element.dataset['done'] = String(box.checked);
        title.textContent = now.title;
        notes.textContent = now.notes ?? '';
        remove.setAttribute('aria-label', `Delete ${now.title ?? 'this to-do'}`);
      }
    };
  }

  private async addTodo(): Promise<void> {
    const title = this.newTodo.value.trim();
    if (!title || this.chosen === undefined) return;
    this.newTodo.value = '';
    await this.device.addTodo(this.chosen, title);
  }

  private async deleteTodo(todoId: string): Promise<void> {
    this.newTodo.focus();
    await this.device.deleteTodo(todoId);
  }
}
