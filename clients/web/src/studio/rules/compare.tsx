// What the text would change for one client: rows gained, lost and changed by table, buckets, and the plan in words.

import { useMemo, useState } from 'preact/hooks';
import { post } from '../api';
import { type Client, ClientFields, parse, useClient } from '../client';
import { useAction, usePage } from '../hooks';
import { Failure, Mark, Pager, Section, Table, Waiting, ways } from '../parts';
import { count, sentence, value as shown } from '../words';
import { Cases } from './cases';

interface TableChange {
  table: string;
  now: number;
  then: number;
  gained: number;
  lost: number;
  changed: number;
}

const ROWS = 10; // on a page: they are tall

type Change = 'gained' | 'lost' | 'changed';
type Row = Record<string, unknown> | null;

interface Compared {
  tables: TableChange[];
  buckets: { now: number; then: number; limit: number };
  plan: string[];
  rows?: { id: string; now: Row; then: Row }[] | null;
  more: boolean;
  warnings: string[];
  note: string;
}

function differing(now: Row, then: Row): string[] {
  const names = [...new Set([...Object.keys(now ?? {}), ...Object.keys(then ?? {})])];
  return names.filter((name) => !now || !then || shown(now[name]) !== shown(then[name]));
}

function Cells({ now, then }: { now: Row; then: Row }) {
  return (
    <>
      {differing(now, then).map((name) => (
        <span class="cell" key={name}>
          <span class="soft">{name}</span> {now && name in now && (then ? <del>{shown(now[name])}</del> : shown(now[name]))}{' '}
          {then && name in then && (now ? <ins>{shown(then[name])}</ins> : shown(then[name]))}
        </span>
      ))}
    </>
  );
}

function Rows({ text, client, table, change }: { text: string; client: Client; table: string; change: Change }) {
  const [offset, setOffset] = useState(0);
  const { value, error, loading } = usePage(`rows ${table} ${change} ${JSON.stringify(client)} ${text}`, offset, (signal) =>
    post<Compared>('compare', { content: text, client, table, change, offset, limit: ROWS }, signal)
  );
  return (
    <div data-testid="compared-rows">
      <Failure error={error} />
      {loading && !value && <Waiting what="Reading the rows" />}
      {value && (
        <Table
          label={`Rows ${change} in ${table}`}
          rows={value.rows ?? []}
          keyOf={({ id }) => id}
          none="No such row."
          columns={[
            { title: 'Id', cell: ({ id }) => <code>{id}</code> },
            { title: 'Values', wide: true, cell: ({ now, then }) => <Cells now={now} then={then} /> }
          ]}
        />
      )}
      {value && <Pager first={value.place} shown={value.rows?.length ?? 0} {...ways(value.place, value.more, setOffset, ROWS)} />}
    </div>
  );
}

function Difference({ value, text, client }: { value: Compared; text: string; client: Client }) {
  const [open, setOpen] = useState<{ table: string; change: Change }>();
  const { buckets } = value;
  const figure = (table: TableChange, change: Change) => {
    const number = table[change];
    const isOpen = open?.table === table.table && open.change === change;
    return number ? (
      <button
        type="button"
        class={`link ${change}`}
        aria-expanded={isOpen}
        data-testid={`${change}-rows`}
        onClick={() => setOpen(isOpen ? undefined : { table: table.table, change })}
      >
        {count(number)}
      </button>
    ) : (
      <span class="soft">0</span>
    );
  };
  return (
    <div data-testid="compared">
      <Table
        label="Tables on the device"
        rows={value.tables}
        keyOf={({ table }) => table}
        none="This client gets no table, now or then."
        columns={[
          { title: 'Table', cell: ({ table }) => <code>{table}</code> },
          { title: 'Now', cell: ({ now }) => count(now), number: true },
          { title: 'Then', cell: ({ then }) => count(then), number: true },
          { title: 'Gained', cell: (table) => figure(table, 'gained'), number: true },
          { title: 'Lost', cell: (table) => figure(table, 'lost'), number: true },
          { title: 'Changed', cell: (table) => figure(table, 'changed'), number: true }
        ]}
        below={({ table }) =>
          open?.table === table ? <Rows key={open.change} text={text} client={client} table={table} change={open.change} /> : null
        }
      />
      <p data-testid="compared-buckets">
        Buckets: {count(buckets.now)} now, {count(buckets.then)} then, of {count(buckets.limit)} allowed.
      </p>
      {value.warnings.map((each) => (
        <p key={each}>
          <Mark tone="busy">{each}</Mark>
        </p>
      ))}
      {value.note && <p class="soft">{sentence(value.note)}</p>}
      {value.plan.length > 0 && (
        <details>
          <summary>The plan in words</summary>
          <ul class="plan">
            {value.plan.map((each, index) => (
              <li key={index}>{each}</li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

export function Comparison({ text, valid }: { text: string; valid: boolean }) {
  const [typed, setTyped] = useClient();
  const [found, setFound] = useState<{ value: Compared; text: string; client: Client }>();
  const { client } = useMemo(() => parse(typed), [typed]);
  const action = useAction(async (client: Client) => {
    const value = await post<Compared>('compare', { content: text, client });
    setFound({ value, text, client });
  });
  return (
    <Section title="What changes for a client" testid="comparison">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (client && valid) void action.run(client);
        }}
      >
        <ClientFields typed={typed} change={setTyped} />
        <div class="actions">
          <button type="submit" class="primary" disabled={!client || !valid || action.busy} data-testid="compare">
            Compare
          </button>
          {action.busy && <span role="status" class="soft">Reading both</span>}
          {!valid && <span class="hint">once the text has no errors</span>}
          {valid && !typed.user && <span class="hint">Name a user to see which rows the text gives him or takes from him.</span>}
        </div>
      </form>
      <Cases client={client} text={text} valid={valid} choose={setTyped} />
      <Failure error={action.error} />
      {found && (
        <>
          <h3>
            What {found.client.user} gets
            {found.text !== text && <span class="soft">by the text before your last change</span>}
          </h3>
          <Difference key={JSON.stringify(found.client)} {...found} />
        </>
      )}
    </Section>
  );
}
