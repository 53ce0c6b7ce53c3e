// Whether the devices of a user have one row: by which bucket, or which condition keeps it away.

import { useState } from 'preact/hooks';
import { post } from '../api';
import type { Client } from '../client';
import { useAction } from '../hooks';
import { Ago, Failure, Field, Mark, Section } from '../parts';
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

interface Explained {
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

function Verdict({ found }: { found: Explained }) {
  return (
    <div data-testid="row-answer" data-included={found.included} role="status">
      <p>
        <Mark tone={found.included ? 'good' : 'bad'}>{found.included ? 'has the row' : 'does not have the row'}</Mark>
      </p>
      <p class="because" data-testid="row-because">
        {found.because}
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
                <Mark tone={query.given ? 'good' : 'quiet'}>{query.stream}</Mark> {query.because}
              </li>
            ))}
          </ul>
        </div>
      ))}
      {found.notes.map((note) => (
        <p class="soft" key={note}>
          {note}
        </p>
      ))}
    </div>
  );
}

export function RowQuestion({ client }: { client: Client | undefined }) {
  const [table, setTable] = useState('');
  const [id, setId] = useState('');
  const [found, setFound] = useState<Explained>();
  const action = useAction(async () => {
    setFound(undefined);
    setFound(await post<Explained>('explain/row', { client, table: table.trim(), id }));
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
          <Field label="Table" value={table} change={setTable} testid="row-table" />
          <Field label="Id" value={id} change={setId} testid="row-id" />
        </div>
        <button type="submit" disabled={!client || !table.trim() || !id || action.busy} data-testid="explain-row">
          Why, or why not?
        </button>
        {!client && <p class="hint">Name the user first.</p>}
      </form>
      <Failure error={action.error} />
      {found && <Verdict found={found} />}
    </Section>
  );
}
