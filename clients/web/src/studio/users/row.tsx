// Whether the devices of a user have one row: by which bucket, or which condition keeps it away.

import { useMemo, useState } from 'preact/hooks';
import { getDiagnostics, post } from '../api';
import type { Client } from '../client';
import { useAction, useAnswer } from '../hooks';
import { Ago, Failure, Field, Mark, Section } from '../parts';
import { type Diagnostics, tableName } from '../service/status';
import { sentence } from '../words';
import { type Reason, values } from './user';

interface Place {
  bucket: string;
  reasons: Reason[];
  values: Record<string, unknown>;
  table: string;
  id: string;
  data: unknown;
  op_id: number;
  source: string | null;
  lsn: string | null;
  committed: number | null;
}

interface Meant {
  source: string;
  table: string;
  id: string;
  queries: { stream: string; given: boolean; because: string }[];
}

/** Whether the devices of a user have a row, and why. */
export interface RowAnswer {
  user: string;
  table: string;
  id: string;
  included: boolean;
  because: string;
  version: number;
  places: Place[];
  rows: Meant[];
  notes: string[];
}

export function Verdict({ found }: { found: RowAnswer }) {
  return (
    <Section title={`Row ${found.id} of ${found.table} for ${found.user}`}>
    <div data-testid="row-answer" data-included={found.included} role="status">
      <p>
        <Mark tone={found.included ? 'good' : 'bad'}>{found.included ? 'has the row' : 'does not have the row'}</Mark>
      </p>
      <p class="because" data-testid="row-because">
        {sentence(found.because)}
      </p>
      {found.places.map((place) => (
        <dl class="facts" key={place.bucket}>
          <dt>Bucket</dt>
          <dd>
            <code>{place.bucket}</code>
          </dd>
          <dt>Rows where</dt>
          <dd>{values(place.values)}</dd>
          <dt>Since</dt>
          <dd>
            op {place.op_id}
            {place.lsn && `, commit ${place.lsn} of ${place.source}`}
            {place.committed && (
              <>
                , <Ago at={place.committed} />
              </>
            )}
          </dd>
          <dt>Data</dt>
          <dd>
            <pre>{typeof place.data === 'string' ? place.data : JSON.stringify(place.data, null, 1)}</pre>
          </dd>
        </dl>
      ))}
      {found.rows.map((row) => (
        <div key={`${row.source} ${row.table} ${row.id}`}>
          <p class="soft">
            {row.table} {row.id} in {row.source}, as the source has it:
          </p>
          <ul class="plain">
            {row.queries.map((query, index) => (
              <li key={index}>
                <Mark tone={query.given ? 'good' : 'quiet'}>
                  <a href={`#/rules?stream=${encodeURIComponent(query.stream)}`} title="Show it in the editor">
                    Rule {query.stream}
                  </a>
                </Mark>{' '}
                {/* What was said above already is not said again. */}
                {!found.because.includes(query.because) && query.because}
              </li>
            ))}
          </ul>
        </div>
      ))}
      {found.notes.map((note) => (
        <p class="soft" key={note}>
          {sentence(note)}
        </p>
      ))}
    </div>
    </Section>
  );
}

const SUGGESTED = 20;

export function RowQuestion({ client, answer }: { client: Client | undefined; answer: (found: RowAnswer | undefined) => void }) {
  const [table, setTable] = useState('');
  const [id, setId] = useState('');
  const read = useAnswer('diagnostics', (signal) => getDiagnostics<Diagnostics>(signal)).value;
  const names = useMemo(() => [...new Set(read?.active_sync_rules?.connections.flatMap(({ tables }) => tables.map(tableName)))], [read]);
  const action = useAction(async () => {
    answer(undefined);
    answer(await post<RowAnswer>('explain/row', { client, table: table.trim(), id }));
  });
  return (
    <Section title="One row for this user">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <div class="pair">
          <Field label="Table" value={table} change={setTable} list={names.filter((name) => name.includes(table)).slice(0, SUGGESTED)} testid="row-table" />
          <Field label="Id" value={id} change={setId} testid="row-id" />
        </div>
        <button type="submit" disabled={!client || !table.trim() || !id || action.busy} data-testid="explain-row">
          {action.busy ? 'Looking' : 'Does he have it, and why?'}
        </button>
        <p class="hint">{client ? 'The id is the one that devices have.' : 'Name the user first.'}</p>
      </form>
      <Failure error={action.error} />
    </Section>
  );
}
