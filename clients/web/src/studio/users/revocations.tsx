// What was ended and revoked, and is still in force.

import { get } from '../api';
import { useAnswer } from '../hooks';
import { Ago, Failure, Section, Table } from '../parts';

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
  const { value, error } = useAnswer(
    'revocations',
    (signal) => get<{ revocations: Revocation[] }>('revocations', {}, signal),
    5000
  );
  if (!error && !value?.revocations.length) return null;
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
    </Section>
  );
}
