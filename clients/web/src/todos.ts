// The to-dos of the chosen list: ticked, renamed in place, and deleted.

import type { Device, View } from './device';
import { h, Rows, type RowView } from './dom';
import { Editable } from './editable';
import type { Todo } from './schema';

type Row = Todo & { waits: boolean };

export class Todos {
  readonly element: HTMLElement;

  private readonly rows: Rows<Row>;
  private readonly more = h('p', { class: 'note' });

  constructor(
    private readonly device: Device,
    private readonly onDelete: () => void,
    private readonly onAsk: (todo: Todo) => void
  ) {
    const items = h('ul', { class: 'todos', 'data-testid': 'todos' });
    this.rows = new Rows(items, (todo) => this.view(todo));
    this.element = h('div', { class: 'todo-part' }, items, this.more);
  }

  show({ todos, total, waiting }: View): void {
    const unsent = new Set(waiting.map(({ row }) => row));
    this.rows.show(todos.map((todo) => ({ ...todo, waits: unsent.has(todo.id) })));
    this.more.hidden = total > 0 && total === todos.length;
    this.more.textContent = total === 0 ? 'Nothing to do.' : `and ${total - todos.length} more`;
  }

  private view(first: Row): RowView<Row> {
    let todo = first;
    const box = h('input', {
      type: 'checkbox',
      'data-testid': 'todo-done',
      onchange: () => void this.device.setDone(todo.id, box.checked)
    });
    const title = new Editable('Title', 'todo-title', 200, (text) => void this.device.setTitle(todo.id, text));
    const notes = h('span', { class: 'notes', 'data-testid': 'todo-notes' });
    const why = h('button', {
      type: 'button',
      class: 'icon why',
      'data-testid': 'todo-why',
      onclick: () => this.onAsk(todo)
    });
    const remove = h('button', {
      type: 'button',
      class: 'icon delete',
      'data-testid': 'todo-delete',
      onclick: () => void this.remove(todo.id)
    });
    why.append('?');
    remove.append('×');
    const element = h(
      'li',
      { 'data-testid': 'todo', 'data-id': todo.id },
      h('label', { class: 'tick' }, box),
      h('div', { class: 'text' }, title.element, notes),
      why,
      remove
    );
    return {
      element,
      update: (now) => {
        todo = now;
        const name = now.title ?? 'this to-do';
        box.checked = now.done === 1;
        box.setAttribute('aria-label', `Done: ${name}`);
        element.dataset['done'] = String(box.checked);
        element.dataset['waits'] = String(now.waits);
        title.show(now.title ?? '');
        notes.textContent = now.notes ?? '';
        notes.hidden = !now.notes;
        why.setAttribute('aria-label', `Why ${name} is here`);
        why.title = 'Which rule lets this row through?';
        remove.setAttribute('aria-label', `Delete ${name}`);
        remove.title = 'Delete';
      }
    };
  }

  private async remove(todoId: string): Promise<void> {
    this.onDelete();
    await this.device.deleteTodo(todoId);
  }
}
