// Every change that operators made through the admin API.

import { useState } from 'preact/hooks';
import { get } from '../api';
import { usePage } from '../hooks';
import { Ago, Failure, PAGE, Pager, Section, steps, Table } from '../parts';
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
  // The last ids of the pages before this one.
  const [ends, setEnds] = useState<number[]>([]);
  const end = ends.at(-1);
  const answer = usePage(
    'changes',
    ends,
    (signal) =>
      get<{ changes: Change[]; more: boolean }>('changes', { limit: PAGE, ...(end === undefined ? {} : { before: end }) }, signal),
    15_000
  );
  const { value: shown } = answer;
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
      {shown && (
        <Pager
          first={shown.place.length * PAGE}
          shown={shown.changes.length}
          {...steps(shown.place, shown.more && shown.changes.at(-1)!.id, setEnds)}
        />
      )}
    </Section>
  );
}
