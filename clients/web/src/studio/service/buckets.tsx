// Which buckets are the largest, by bytes, history or growth, and what takes room in the store.

import { useState } from 'preact/hooks';
import { get } from '../api';
import { usePage } from '../hooks';
import { Ago, Failure, Section, Table, Waiting } from '../parts';
import { count, counted, size } from '../words';

interface Bucket {
  bucket: string;
  definition: string;
  rows: number;
  ops: number;
  bytes: number;
  ops_per_row: number;
  grown: number;
}

interface Definition {
  definition: string;
  buckets: number;
  ops: number;
  size: number;
  largest_ops: number;
  largest_size: number;
}

interface Measured {
  seen: number;
  buckets: Bucket[];
  buckets_total: number;
  definitions: Definition[];
}

const ORDERS = [
  ['bytes', 'size'],
  ['ops_per_row', 'ops for each row'],
  ['grown', 'ops since the last compaction']
] as const;

export function Buckets() {
  const [limit, setLimit] = useState(20);
  const [order, setOrder] = useState<string>('bytes');
  const { value, error, loading } = usePage(
    'buckets',
    [limit, order],
    (signal) => get<Measured>('buckets', { limit, order }, signal),
    30_000
  );
  return (
    <Section
      title="Largest buckets"
      testid="buckets"
      beside={
        <>
          {value && (
            <span>
              of {count(value.buckets_total)}, seen <Ago at={value.seen} />
            </span>
          )}
          <label class="choice">
            by{' '}
            <select value={order} onChange={(event) => setOrder(event.currentTarget.value)}>
              {ORDERS.map(([name, title]) => (
                <option value={name} key={name}>
                  {title}
                </option>
              ))}
            </select>
          </label>
        </>
      }
    >
      <Failure error={error} />
      {loading && !value && <Waiting what="Measuring the buckets" />}
      {value && (
        <>
          <Table
            label="Largest buckets"
            rows={value.buckets}
            text={({ bucket }) => bucket}
            keyOf={({ bucket }) => bucket}
            none="The store has no bucket."
            columns={[
              { title: 'Bucket', cell: ({ bucket }) => <code>{bucket}</code>, wide: true },
              { title: 'Rows', cell: ({ rows }) => count(rows), number: true },
              { title: 'Ops', cell: ({ ops }) => count(ops), number: true },
              { title: 'Ops for each row', cell: ({ ops_per_row }) => ops_per_row.toFixed(1), number: true },
              { title: 'Since compaction', cell: ({ grown }) => count(grown), number: true },
              { title: 'Size', cell: ({ bytes }) => size(bytes), number: true }
            ]}
          />
          {value.buckets.length >= limit && limit < 200 && (
            <button type="button" class="small" onClick={() => setLimit(200)}>
              Show 200
            </button>
          )}
          <details>
            <summary>{counted(value.definitions.length, 'bucket definition')}</summary>
            <Table
              label="Bucket definitions"
              rows={value.definitions}
              text={({ definition }) => definition}
              keyOf={({ definition }) => definition}
              none="The store has none."
              columns={[
                { title: 'Definition', cell: ({ definition }) => <code>{definition}</code>, wide: true },
                { title: 'Buckets', cell: ({ buckets }) => count(buckets), number: true },
                { title: 'Ops', cell: ({ ops }) => count(ops), number: true },
                { title: 'Size', cell: (each) => size(each.size), number: true },
                { title: 'Largest', cell: (each) => size(each.largest_size), number: true }
              ]}
            />
          </details>
        </>
      )}
    </Section>
  );
}
