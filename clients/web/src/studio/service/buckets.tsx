// Which buckets are the largest, and what of it is history.

import { useState } from 'preact/hooks';
import { get } from '../api';
import { useAnswer } from '../hooks';
import { Ago, Failure, Section, Table, Waiting } from '../parts';
import { count, size } from '../words';

interface Bucket {
  bucket: string;
  definition: string;
  rows: number | null;
  ops: number;
  bytes: number;
  history_bytes: number | null;
  compacted: number | null;
}

interface Definition {
  name: string;
  buckets: number;
  rows: number | null;
  ops: number;
  bytes: number;
}

const some = (number: number | null): string => (number === null ? '–' : count(number));

export function Buckets() {
  const [limit, setLimit] = useState(20);
  const answer = useAnswer(`buckets ${limit}`, (signal) =>
    get<{ buckets: Bucket[]; definitions: Definition[]; note?: string }>('buckets', { limit }, signal)
  );
  const { value, error } = answer;
  return (
    <Section
      title="Largest buckets"
      testid="buckets"
      beside={
        <button type="button" class="quiet" onClick={answer.again} disabled={answer.loading}>
          Measure again
        </button>
      }
    >
      <Failure error={error} />
      {!value && !error && <Waiting what="Measuring the buckets" />}
      {value && (
        <>
          <Table
            label="Largest buckets"
            rows={value.buckets}
            keyOf={({ bucket }) => bucket}
            none="The store has no bucket."
            columns={[
              { title: 'Bucket', cell: ({ bucket }) => <code>{bucket}</code>, wide: true },
              { title: 'Rows', cell: ({ rows }) => some(rows), number: true },
              { title: 'Ops', cell: ({ ops }) => count(ops), number: true },
              { title: 'Size', cell: ({ bytes }) => size(bytes), number: true },
              { title: 'History', cell: (each) => (each.history_bytes === null ? '–' : size(each.history_bytes)), number: true },
              { title: 'Compacted', cell: ({ compacted }) => <Ago at={compacted} /> }
            ]}
          />
          {value.buckets.length >= limit && limit < 200 && (
            <button type="button" class="small" onClick={() => setLimit(200)}>
              Show 200
            </button>
          )}
          <Table
            label="Bucket definitions"
            rows={value.definitions}
            keyOf={({ name }) => name}
            none=""
            columns={[
              { title: 'Definition', cell: ({ name }) => <code>{name}</code>, wide: true },
              { title: 'Buckets', cell: ({ buckets }) => count(buckets), number: true },
              { title: 'Rows', cell: ({ rows }) => some(rows), number: true },
              { title: 'Ops', cell: ({ ops }) => count(ops), number: true },
              { title: 'Size', cell: ({ bytes }) => size(bytes), number: true }
            ]}
          />
          {value.note && <p class="soft">{value.note}</p>}
        </>
      )}
    </Section>
  );
}
