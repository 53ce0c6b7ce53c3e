// Every change that operators made through the admin API.

import { useState } from 'preact/hooks';
import { get } from '../api';
import { useAnswer } from '../hooks';
import { Ago, Failure, Section, Table } from '../parts';
import { value } from '../words';

interface Change {
  id: number;
  at: number;
  who: string;
  role: string;
  what: string;
  detail: unknown;
}

const words = (detail: unknown): string =>
  typeof detail === 'object' && detail !== null
    ? Object.entries(detail)
        .map(([name, each]) => `${name} ${value(each)}`)
        .join(', ')
    : value(detail);

export function Changes() {
  const [limit, setLimit] = useState(20);
  const answer = useAnswer(
    `changes ${limit}`,
    (signal) => get<{ changes: Change[]; more: boolean }>('changes', { limit }, signal),
    15_000
  );
  return (
    <Section title="Changes by operators" testid="changes">
      <Failure error={answer.error} />
      {answer.value && (
        <Table
          label="Changes by operators"
          rows={answer.value.changes}
          keyOf={({ id }) => id}
          none="Nobody changed anything yet."
          columns={[
            { title: 'When', cell: ({ at }) => <Ago at={at} /> },
            { title: 'Who', cell: ({ who }) => who || 'a token without a name' },
            { title: 'What', cell: ({ what }) => what },
            { title: 'Details', cell: ({ detail }) => words(detail), wide: true }
          ]}
        />
      )}
      {answer.value?.more && limit < 200 && (
        <button type="button" class="small" onClick={() => setLimit(200)}>
          Show 200
        </button>
      )}
    </Section>
  );
}
