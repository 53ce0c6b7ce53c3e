// A text that is edited in place: it looks like text, and a click makes it a field. Enter or leaving the field keeps
// what was typed, Escape does not.

import { h } from './dom';

export class Editable {
  readonly element: HTMLElement;

  private readonly text: HTMLButtonElement;
  private readonly field: HTMLInputElement;
  private readonly meanwhile = h('span', { class: 'meanwhile', role: 'status', hidden: true });
  private shown = '';
  private begunWith = '';

  /** `what` names the text for screen readers; `testId` is that of the text, and with `-field` that of the field. */
  constructor(
    private readonly what: string,
    testId: string,
    maxLength: number,
    private readonly keep: (text: string) => void
  ) {
    this.text = h('button', { type: 'button', class: 'editable', 'data-testid': testId, onclick: () => this.begin() });
    this.field = h('input', {
      'data-testid': `${testId}-field`,
      'aria-label': what,
      maxlength: String(maxLength),
      hidden: true,
      onkeydown: (event) => this.onKey(event as KeyboardEvent),
      // A row that moves takes its focus along in the same moment; only who stays away has left.
      onblur: () => setTimeout(() => document.activeElement !== this.field && this.end(true))
    });
    this.element = h('span', { class: 'editing-place' }, this.text, this.field, this.meanwhile);
  }

  /** Show a text. A field that is open stays as it is, and says what the text has become meanwhile. */
  show(text: string): void {
    this.shown = text;
    if (this.text.textContent !== text) this.text.textContent = text;
    this.text.title = `${this.what}: click to change it`;
    const changed = this.isOpen && text !== this.begunWith;
    this.meanwhile.hidden = !changed;
    this.meanwhile.textContent = changed ? `Meanwhile: ${text}` : '';
  }

  private get isOpen(): boolean {
    return !this.field.hidden;
  }

  private begin(): void {
    this.begunWith = this.shown;
    this.field.value = this.shown;
    this.swap(true);
    this.field.focus();
    this.field.select();
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key !== 'Enter' && event.key !== 'Escape') return;
    event.preventDefault();
    this.end(event.key === 'Enter');
    this.text.focus();
  }

  private end(keep: boolean): void {
    if (!this.isOpen) return;
    const text = this.field.value.trim();
    this.swap(false);
    this.show(this.shown);
    if (keep && this.field.isConnected && text && text !== this.begunWith) this.keep(text);
  }

  private swap(open: boolean): void {
    this.field.hidden = !open;
    this.text.hidden = open;
  }
}
