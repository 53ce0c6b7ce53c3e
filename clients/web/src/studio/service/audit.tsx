// Audits: whether the store has what the sources have.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { useAction, useAnswer, useMayEdit } from '../hooks';
import { Ago, Failure, Mark, Section, Table } from '../parts';

interface Audit {
  id: number;
  source: string;
  asked: number;
  tables: string[];
  repair: boolean;
  state: 'waiting' | 'running' | 'done' | 'failed';
  progress: string;
  differs: boolean | null;
  result: unknown;
}

function State({ audit }: { audit: Audit }) {
  if (audit.state === 'failed') return <Mark tone="bad">failed</Mark>;
  if (audit.state !== 'done') return <Mark tone="busy">{audit.progress || audit.state}</Mark>;
  return <Mark tone={audit.differs ? 'bad' : 'good'}>{audit.differs ? 'something differs' : 'all is equal'}</Mark>;
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
            Compare everything with the sources
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
              cell: ({ id, state }) =>
                (state === 'done' || state === 'failed') && (
                  <button type="button" class="small" aria-expanded={open === id} onClick={() => setOpen(open === id ? undefined : id)}>
                    Result
                  </button>
                )
            }
          ]}
          below={({ id, result }) =>
            open === id ? (
              <pre tabIndex={0} aria-label={`Result of audit ${id}`}>
                {JSON.stringify(result, null, 2)}
              </pre>
            ) : null
          }
        />
      )}
    </Section>
  );
}
