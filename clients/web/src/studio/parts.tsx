// Parts of all pages: tables, fields, errors, times, and questions before something changes. Text from the service is
// only ever set as text.

import type { ComponentChildren, TargetedEvent } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import type { ApiError } from './api';
import { useAction } from './hooks';
import { clock, count, now, span } from './words';

/** What went wrong, with its code and what to do. */
export function Failure({ error }: { error: ApiError | undefined }) {
  if (!error) return null;
  return (
    <div class="failure" role="alert" data-testid="failure">
      {error.code && <code class="code">{error.code}</code>}
      <span>
        {error.message}
        {error.remedy && <span class="remedy">{error.remedy}</span>}
      </span>
    </div>
  );
}

export function Section(props: {
  title: string;
  testid?: string;
  beside?: ComponentChildren;
  children: ComponentChildren;
}) {
  const id = useId();
  return (
    <section aria-labelledby={id} data-testid={props.testid}>
      <header class="section-head">
        <h2 id={id}>{props.title}</h2>
        {props.beside && <div class="beside">{props.beside}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** A time, as its distance from now; the whole time is its title. */
export function Ago({ at }: { at: number | null | undefined }) {
  if (!at) return <span class="soft">never</span>;
  const distance = now() - at;
  const text = distance < 0 ? `in ${span(-distance)}` : `${span(distance)} ago`;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={clock(at)}>
      {text}
    </time>
  );
}

/** How long something has lasted. */
export function For({ since }: { since: number }) {
  return (
    <time dateTime={new Date(since * 1000).toISOString()} title={clock(since)}>
      for {span(now() - since)}
    </time>
  );
}

export type Tone = 'good' | 'busy' | 'bad' | 'quiet';

/** A state, as a dot of a colour and a word. */
export function Mark({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`mark ${tone}`}>{children}</span>;
}

export interface Column<Row> {
  title: string;
  cell: (row: Row) => ComponentChildren;
  /** Numbers stand on the right. */
  number?: boolean;
  /** Long text, which may break anywhere. */
  wide?: boolean;
  /** A column of buttons, whose title is only read aloud. */
  tools?: boolean;
}

/** The most rows of a table that are shown at once. More make a page slow, and nobody reads them. */
export const PAGE = 50;

/** Where one is in a long list, and the ways on and back. Nothing for a list that is there whole. */
export function Pager(props: { first: number; shown: number; of?: number; back?: () => void; on?: () => void }) {
  const { first, shown, of, back, on } = props;
  if (!back && !on) return null;
  return (
    <div class="pager">
      <button type="button" class="small" disabled={!back} onClick={back} data-testid="previous">
        Previous
      </button>
      <button type="button" class="small" disabled={!on} onClick={on} data-testid="next">
        Next
      </button>
      <span class="soft" role="status">
        {shown ? `${count(first + 1)} to ${count(first + shown)}` : 'none'}
        {of !== undefined && ` of ${count(of)}`}
      </span>
    </div>
  );
}

/** The ways through a list that begins at `first`, for Pager. */
export function ways(first: number, more: boolean, go: (first: number) => void, page = PAGE): { back?: () => void; on?: () => void } {
  return {
    ...(first > 0 ? { back: () => go(Math.max(0, first - page)) } : {}),
    ...(more ? { on: () => go(first + page) } : {})
  };
}

/** The same through a list whose pages begin after ids: `ends` has those before this page, `last` is the id for the next. */
export function steps<Id>(ends: Id[], last: Id | false, go: (ends: Id[]) => void): { back?: () => void; on?: () => void } {
  return {
    ...(ends.length ? { back: () => go(ends.slice(0, -1)) } : {}),
    ...(last === false ? {} : { on: () => go([...ends, last]) })
  };
}

/** The first of many items, and a button for more of them. */
export function Several<Item>({ items, most, show }: { items: readonly Item[]; most: number; show: (item: Item, index: number) => ComponentChildren }) {
  const [shown, setShown] = useState(most);
  const rest = items.length - shown;
  return (
    <>
      {items.slice(0, shown).map(show)}
      {rest > 0 && (
        <button type="button" class="small" onClick={() => setShown(shown + most)} data-testid="more">
          {rest > most ? `Show ${count(most)} more of ${count(rest)}` : `Show the other ${count(rest)}`}
        </button>
      )}
    </>
  );
}

/** A field to find some of many by a text that they have. */
export function Find({ value, change, what }: { value: string; change: (value: string) => void; what: string }) {
  return (
    <input type="search" class="find" aria-label={`Find ${what}`} placeholder={`Find ${what}`} value={value} spellcheck={false} autocomplete="off" data-testid="find" onInput={(event) => change(event.currentTarget.value)} />
  );
}

/** A table, of which a page is shown at a time. */
export function Table<Row>(props: {
  label: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  keyOf: (row: Row) => string | number;
  none: string;
  testid?: string;
  /** A row of its own below the row, if there is one. */
  below?: (row: Row) => ComponentChildren;
  /** By what text a row is found, if there are more than a page of them. */
  text?: (row: Row) => string;
}) {
  const [wanted, setWanted] = useState(0);
  const [sought, setSought] = useState('');
  const { text } = props;
  if (!props.rows.length) return <p class="none">{props.none}</p>;
  const kind = (column: Column<Row>) =>
    [column.number && 'number', column.wide && 'wide', column.tools && 'tools'].filter(Boolean).join(' ');
  const isLong = props.rows.length > PAGE;
  const part = sought.trim().toLowerCase();
  const fitting = isLong && text && part ? props.rows.filter((row) => text(row).toLowerCase().includes(part)) : props.rows;
  const first = wanted < fitting.length ? wanted : 0; // it may have become shorter
  const shown = fitting.slice(first, first + PAGE);
  return (
    <>
      {isLong && text && (
        <Find
          value={sought}
          what={`in ${props.label.toLowerCase()}`}
          change={(next) => {
            setSought(next);
            setWanted(0);
          }}
        />
      )}
      {isLong && !fitting.length && <p class="none">None has this text.</p>}
      <div class="scroll" role="group" aria-label={props.label} tabIndex={0} hidden={!fitting.length}>
        <table data-testid={props.testid}>
          <thead>
            <tr>
              {props.columns.map((column) => (
                <th scope="col" class={kind(column)} key={column.title}>
                  {column.tools ? <span class="unseen">{column.title}</span> : column.title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => {
              const below = props.below?.(row);
              return [
                <tr key={props.keyOf(row)} data-row={String(props.keyOf(row))}>
                  {props.columns.map((column) => (
                    <td class={kind(column)} key={column.title}>
                      {column.cell(row)}
                    </td>
                  ))}
                </tr>,
                below ? (
                  <tr key={`${props.keyOf(row)} below`} class="below">
                    <td colSpan={props.columns.length}>{below}</td>
                  </tr>
                ) : null
              ];
            })}
          </tbody>
        </table>
      </div>
      {isLong && (
        <Pager first={first} shown={shown.length} of={fitting.length} {...ways(first, first + PAGE < fitting.length, setWanted)} />
      )}
    </>
  );
}

export function Field(props: {
  label: string;
  value: string;
  change: (value: string) => void;
  hint?: string;
  testid?: string;
  lines?: number;
  list?: readonly string[];
  secret?: boolean;
  wrong?: string | undefined;
}) {
  const id = useId();
  const common = {
    id,
    value: props.value,
    'data-testid': props.testid,
    spellcheck: false,
    'aria-invalid': props.wrong ? ('true' as const) : undefined,
    'aria-describedby': props.wrong || props.hint ? `${id}h` : undefined,
    onInput: (event: TargetedEvent<HTMLInputElement | HTMLTextAreaElement>) => props.change(event.currentTarget.value)
  };
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {props.lines ? (
        <textarea {...common} rows={props.lines} />
      ) : props.list ? (
        <input {...common} list={`${id}l`} autocomplete="off" />
      ) : props.secret ? (
        <input {...common} type="password" autocomplete="current-password" />
      ) : (
        <input {...common} type="text" autocomplete="off" />
      )}
      {props.list && (
        <datalist id={`${id}l`}>
          {props.list.map((each) => (
            <option value={each} key={each} />
          ))}
        </datalist>
      )}
      {(props.wrong || props.hint) && (
        <p id={`${id}h`} class={props.wrong ? 'wrong' : 'hint'}>
          {props.wrong || props.hint}
        </p>
      )}
    </div>
  );
}

/** A window over the page. It has the focus, and Escape closes it. */
export function Dialog(props: { title: string; close: () => void; wide?: boolean; testid?: string; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={element} class={props.wide ? 'wide' : ''} aria-labelledby={id} onClose={props.close} data-testid={props.testid}>
      <header>
        <h2 id={id}>{props.title}</h2>
        <button type="button" class="quiet" onClick={() => element.current?.close()}>
          Close
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

/** A button that asks before it acts, and tells what went wrong. */
export function Confirmed(props: {
  label: string;
  title: string;
  question: string;
  act: () => Promise<void>;
  testid?: string;
  disabled?: boolean;
}) {
  const [open, setOpen] = useState(false);
  const action = useAction(props.act);
  const go = async () => {
    if (await action.run()) setOpen(false);
  };
  return (
    <>
      <button type="button" class="small" disabled={props.disabled} data-testid={props.testid} onClick={() => setOpen(true)}>
        {props.label}
      </button>
      {open && (
        <Dialog title={props.title} close={() => setOpen(false)} testid="confirm">
          <p>{props.question}</p>
          <Failure error={action.error} />
          <div class="actions">
            <button type="button" class="primary" disabled={action.busy} data-testid="confirm-yes" onClick={() => void go()}>
              {props.label.replace('…', '')}
            </button>
            <button type="button" onClick={() => setOpen(false)}>
              Keep it as it is
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

/** Says that an answer is awaited, to eyes and to screen readers. */
export function Waiting({ what }: { what: string }) {
  return (
    <p class="waiting" role="status">
      {what}
    </p>
  );
}
