// Audits: whether the store has what the sources have.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { useAction, useAnswer, useMayEdit } from '../hooks';
import { Ago, Confirmed, Failure, Mark, Section, Several, Table } from '../parts';
import { count, counted } from '../words';

interface Audit {
  id: number;
  source: string;
  asked: number;
  tables: string[];
  repair: boolean;
  state: 'waiting' | 'running' | 'done' | 'failed';
  progress: string;
  differs: boolean | null;
  result: Result;
}

interface OfComputed {
  table: string;
  problem: string | null;
  rows: number;
  differ: number;
}

/** What an audit found, or the error that ended it. `rows` has the first differences of each table. */
interface Result {
  error?: string;
  tables?: string[];
  rows_compared?: number;
  differences?: Record<string, number>;
  rows?: { table: string; row: string; problem: string; columns?: string[] }[];
  computed?: OfComputed[];
  ops?: number;
  ops_checked?: number;
  buckets?: { bucket: string; problem: string }[];
  lookups?: number;
}

function State({ audit }: { audit: Audit }) {
  if (audit.state === 'failed') return <Mark tone="bad">failed</Mark>;
  if (audit.state !== 'done') return <Mark tone="busy">{audit.progress || audit.state}</Mark>;
  if (audit.differs) return <Mark tone={audit.repair ? 'busy' : 'bad'}>{audit.repair ? 'differed, is repaired' : 'something differs'}</Mark>;
  return <Mark tone="good">all is equal</Mark>;
}

const computed = ({ problem, differ, rows }: OfComputed): string =>
  problem ? `not compared: ${problem}` : `${count(differ)} of ${counted(rows, 'row')} differ`;

function Found({ audit: { result, repair } }: { audit: Audit }) {
  if (result.error) return <p>{result.error}</p>;
  const differences = Object.entries(result.differences ?? {});
  const done = repair ? 'repaired' : 'differ';
  return (
    <div data-testid="audit-result">
      <dl class="facts">
        <dt>Compared with the source</dt>
        <dd>
          {counted(result.rows_compared ?? 0, 'row')} of {counted(result.tables?.length ?? 0, 'table')}
        </dd>
        {result.ops_checked !== undefined && (
          <>
            <dt>Checked in the store</dt>
            <dd>{counted(result.ops_checked, 'op')}</dd>
          </>
        )}
        <dt>Rows</dt>
        <dd>
          {differences.length === 0 && 'none differs'}
          <Several items={differences} most={20} show={([table, number]) => (
            <p key={table}>
              <code>{table}</code>: {counted(number, 'row')} {done}
            </p>
          )} />
        </dd>
        {Boolean(result.computed?.length) && (
          <>
            <dt>Computed tables</dt>
            <dd>
              {result.computed?.map((each) => (
                <p key={each.table}>
                  <code>{each.table}</code>: {computed(each)}
                </p>
              ))}
            </dd>
          </>
        )}
        {Boolean(result.lookups) && (
          <>
            <dt>Lookups</dt>
            <dd>
              {count(result.lookups!)} {done}
            </dd>
          </>
        )}
        {Boolean(result.ops) && (
          <>
            <dt>Devices are sent</dt>
            <dd>{counted(result.ops!, 'op')}</dd>
          </>
        )}
      </dl>
      {Boolean(result.rows?.length) && (
        <Table
          label="Rows that differ"
          rows={result.rows!}
          keyOf={({ table, row, problem }) => `${table} ${row} ${problem}`}
          none=""
          columns={[
            { title: 'Table', cell: ({ table }) => <code>{table}</code> },
            { title: 'Row', cell: ({ row }) => <code>{row}</code>, wide: true },
            { title: 'What differs', cell: ({ problem, columns }) => [problem, columns?.join(', ')].filter(Boolean).join(': '), wide: true }
          ]}
        />
      )}
      {Boolean(result.buckets?.length) && (
        <Table
          label="Buckets that are wrong"
          rows={result.buckets!}
          keyOf={({ bucket }) => bucket}
          none=""
          columns={[
            { title: 'Bucket', cell: ({ bucket }) => <code>{bucket}</code>, wide: true },
            { title: 'What is wrong', cell: ({ problem }) => problem, wide: true }
          ]}
        />
      )}
    </div>
  );
}

export function Audits() {
  const mayEdit = useMayEdit();
  const [open, setOpen] = useState<number>();
  const answer = useAnswer('audit', (signal) => get<{ audits: Audit[] }>('audit', {}, signal), 4000);
  const start = useAction(async () => {
    await post('audit', {});
    answer.again();
  });
  return (
    <Section
      title="Audits"
      testid="audits"
      beside={
        mayEdit && (
          <button type="button" class="small" disabled={start.busy} onClick={() => void start.run()} data-testid="start-audit">
            {start.busy ? 'Starting' : 'Compare everything with the sources'}
          </button>
        )
      }
    >
      <Failure error={answer.error ?? start.error} />
      {answer.value && (
        <Table
          label="Audits"
          rows={answer.value.audits}
          keyOf={({ id, source }) => `${source} ${id}`}
          none="None was asked for in the last day."
          columns={[
            { title: 'Asked for', cell: ({ asked }) => <Ago at={asked} /> },
            { title: 'Source', cell: ({ source }) => source },
            { title: 'Tables', cell: ({ tables }) => tables.join(', ') || 'all', wide: true },
            { title: 'State', cell: (audit) => <State audit={audit} /> },
            {
              title: 'Result',
              tools: true,
              cell: ({ id, source, tables, repair, state, differs }) => (
                <>
                  {(state === 'done' || state === 'failed') && (
                    <button type="button" class="small" aria-expanded={open === id} onClick={() => setOpen(open === id ? undefined : id)}>
                      {open === id ? 'Hide what was found' : 'What was found'}
                    </button>
                  )}
                  {mayEdit && differs && !repair && (
                    <Confirmed
                      label="Repair…"
                      title="Repair what differs"
                      question="The comparison is done again. What differs is put right in the store, and devices are sent the corrections."
                      act={async () => {
                        await post('audit', { sources: [source], tables, repair: true });
                        answer.again();
                      }}
                      testid="repair"
                    />
                  )}
                </>
              )
            }
          ]}
          below={(audit) =>
            open === audit.id ? (
              <Found audit={audit} />
            ) : null
          }
        />
      )}
    </Section>
  );
}
