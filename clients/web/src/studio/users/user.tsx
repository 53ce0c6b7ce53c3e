// What a user is sent now: streams, buckets and why.

import { post } from '../api';
import type { Client } from '../client';
import { useAnswer } from '../hooks';
import { type Column, Failure, Mark, Section, Table, Waiting } from '../parts';
import { count, counted, size, value as shown } from '../words';

export interface Reason {
  stream: string;
  by: string;
}

interface Bucket {
  name: string;
  definition: string;
  priority: number;
  reasons: Reason[];
  values: Record<string, unknown>;
  rows: number | null;
  ops: number;
  size: number;
}

interface Stream {
  name: string;
  default: boolean;
  subscribed: boolean;
  buckets: number;
  errors: string[];
  empty_because: string[];
}

interface Explained {
  user: string;
  version: number;
  checkpoint: number;
  rows: number | null;
  ops: number;
  size: number;
  buckets: Bucket[];
  streams: Stream[];
  lookups: Record<string, string[]>;
}

export const values = (given: Record<string, unknown>): string =>
  Object.entries(given)
    .map(([name, value]) => `${name} = ${shown(value)}`)
    .join(', ') || 'the same for everybody';

const by = (reasons: Reason[]): string =>
  reasons.map(({ stream, by }) => (by === 'default' ? stream : `${stream} (${by})`)).join(', ');

const WHY_NOTHING: Column<Stream> = {
  title: 'Why nothing',
  wide: true,
  cell: ({ errors, empty_because }) => (
    <>
      {errors.map((each) => (
        <p key={each}>
          <Mark tone="bad">{each}</Mark>
        </p>
      ))}
      {empty_because.map((each) => (
        <p key={each}>{each}</p>
      ))}
    </>
  )
};

export function UserAnswer({ client }: { client: Client }) {
  const answer = useAnswer(`user ${JSON.stringify(client)}`, (signal) =>
    post<Explained>('explain/user', { client }, signal)
  );
  const { value, error } = answer;
  return (
    <Section
      title={`What ${client.user} is sent`}
      testid="user-answer"
      beside={
        <button type="button" class="quiet" onClick={answer.again} disabled={answer.loading}>
          Ask again
        </button>
      }
    >
      <Failure error={error} />
      {!value && !error && <Waiting what="Reading the user's buckets" />}
      {value && (
        <>
          <p class="summary" data-testid="user-summary">
            <b>{value.rows === null ? 'too many rows to count' : counted(value.rows, 'row')}</b> in{' '}
            {counted(value.buckets.length, 'bucket')}. A new device downloads {counted(value.ops, 'op')}, {size(value.size)}{' '}
            before compression. <span class="soft">Version {value.version}, checkpoint {value.checkpoint}</span>
          </p>
          <Table
            label="Streams"
            rows={value.streams}
            text={({ name }) => name}
            keyOf={({ name }) => name}
            none="The sync config has no streams."
            columns={[
              { title: 'Stream', cell: ({ name }) => <code>{name}</code> },
              {
                title: 'Asked for',
                cell: (stream) => (stream.default ? 'by default' : stream.subscribed ? 'subscribed' : 'not subscribed')
              },
              { title: 'Buckets', cell: ({ buckets }) => count(buckets), number: true },
              ...(value.streams.some(({ errors, empty_because }) => errors.length || empty_because.length) ? [WHY_NOTHING] : [])
            ]}
          />
          <Table
            label="Buckets"
            rows={value.buckets}
            text={({ name, reasons }) => `${name} ${by(reasons)}`}
            keyOf={({ name }) => name}
            none="This user has no bucket."
            columns={[
              { title: 'Bucket', cell: ({ name }) => <code>{name}</code>, wide: true },
              { title: 'Rows where', cell: (bucket) => values(bucket.values), wide: true },
              { title: 'By stream', cell: ({ reasons }) => by(reasons) },
              { title: 'Priority', cell: ({ priority }) => priority, number: true },
              { title: 'Rows', cell: ({ rows }) => (rows === null ? 'many' : count(rows)), number: true },
              { title: 'Ops', cell: ({ ops }) => count(ops), number: true },
              { title: 'Size', cell: (bucket) => size(bucket.size), number: true }
            ]}
          />
          {Object.keys(value.lookups).length > 0 && (
            <details>
              <summary>{counted(Object.keys(value.lookups).length, 'lookup')} behind it</summary>
              <Table
                label="Lookups"
                rows={Object.entries(value.lookups)}
                text={([key]) => key}
                keyOf={([key]) => key}
                none=""
                columns={[
                  { title: 'Looked up', cell: ([key]) => <code>{key}</code>, wide: true },
                  { title: 'Found', cell: ([, found]) => <code>{found.join('  ') || 'nothing'}</code>, wide: true }
                ]}
              />
            </details>
          )}
        </>
      )}
    </Section>
  );
}
