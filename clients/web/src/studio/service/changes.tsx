// Every change that operators made through the admin API.

import { useState } from 'preact/hooks';
import { get } from '../api';
import { useAnswer } from '../hooks';
import { Ago, Failure, Section, Table } from '../parts';

interface Change {
  id?: number;
  at: number;
  who: string;
  role: string;
  what: string;
  detail: unknown;
}

const words = (detail: unknown): string =>
  detail === null || detail === undefined ? '' : typeof detail === 'string' ? detail : JSON.stringify(detail);

export function Changes() {
  const [limit, setLimit] = useState(20);
  const { value, error } = useAnswer(
    `changes ${limit}`,
    (signal) => get<{ changes: Change[]; more: boolean }>('changes', { limit }, signal),
    15_000
  );
  return (
    <Section title="Changes by operators" testid="changes">
      <Failure error={error} />
      {value && (
        <Table
          label="Changes by operators"
          rows={value.changes}
          keyOf={(change) => change.id ?? `${change.at} ${change.what} ${words(change.detail)}`}
          none="Nobody changed anything yet."
          columns={[
            { title: 'When', cell: ({ at }) => <Ago at={at} /> },
            { title: 'Who', cell: ({ who }) => who || 'a token without a name' },
            { title: 'What', cell: ({ what }) => what },
            { title: 'Details', cell: ({ detail }) => words(detail), wide: true }
          ]}
        />
      )}
      {value?.more && limit < 200 && (
        <button type="button" class="small" onClick={() => setLimit(200)}>
          Show 200
        </button>
      )}
    </Section>
  );
}
