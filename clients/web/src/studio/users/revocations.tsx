// What was ended and revoked, and is still in force.

import { useState } from 'preact/hooks';
import { get } from '../api';
import { usePage } from '../hooks';
import { Ago, Failure, PAGE, Pager, Section, Table, ways } from '../parts';

interface Revocation {
  seq: number;
  kind: string;
  value: string;
  since: number;
  until: number;
}

const KINDS: Record<string, string> = {
  sub: 'tokens of a user',
  session: 'tokens of a session',
  jti: 'one token',
  streams: 'open streams'
};

export function Revocations() {
  const [first, setFirst] = useState(0);
  const { value, error } = usePage(
    'revocations',
    first,
    (signal) => get<{ revocations: Revocation[]; total: number }>('revocations', { skip: first, limit: PAGE }, signal),
    5000
  );
  if (!error && !value?.total) return null;
  return (
    <Section title="Ended and revoked" testid="revocations">
      <Failure error={error} />
      {value && (
        <Table
          label="Ended and revoked"
          rows={[...value.revocations].reverse()}
          keyOf={({ seq }) => seq}
          none=""
          columns={[
            { title: 'What', cell: ({ kind }) => KINDS[kind] ?? kind },
            { title: 'Of', cell: ({ value }) => <code>{value}</code>, wide: true },
            { title: 'Since', cell: ({ since }) => <Ago at={since} /> },
            { title: 'Forgotten', cell: ({ until }) => <Ago at={until} /> }
          ]}
        />
      )}
      {value && <Pager first={value.place} shown={value.revocations.length} of={value.total} {...ways(value.place, value.place + PAGE < value.total, setFirst)} />}
    </Section>
  );
}
