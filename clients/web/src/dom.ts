// Two helpers for plain DOM: build an element, and show rows without touching the elements of rows that stay.

type Child = Node | string;
type Attributes = Record<string, string | boolean | ((event: Event) => void)>;

/** `on…` attributes are listeners, `true` sets an attribute without a value, `false` leaves it out. */
export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children);
  return element;
}

export interface RowView<Row> {
  element: HTMLElement;
  update(row: Row): void;
}

/** Keeps one view a row in `container`, so that focus and animations survive a new result. */
export class Rows<Row extends { id: string }> {
  private views = new Map<string, RowView<Row>>();

  constructor(
    private readonly container: HTMLElement,
    private readonly create: (row: Row) => RowView<Row>
  ) {}

  show(rows: Row[]): void {
    const views = new Map<string, RowView<Row>>();
    for (const row of rows) {
      const view = this.views.get(row.id) ?? this.create(row);
      view.update(row);
      views.set(row.id, view);
    }
    for (const [id, view] of this.views) if (!views.has(id)) view.element.remove();
    const focused = document.activeElement;
    let next = this.container.firstElementChild;
    for (const { element } of views.values()) {
      if (element === next) next = next.nextElementSibling;
      else this.container.insertBefore(element, next);
    }
    // An element that moves loses the focus.
    if (focused instanceof HTMLElement && this.container.contains(focused)) focused.focus({ preventScroll: true });
    this.views = views;
  }
}
