// How the service is: its sources, tables and work, live and over the last day, what takes room, and what is parked.

import { getStatus } from '../api';
import { useAnswer } from '../hooks';
import { Ago, Failure, For, Mark, Section, Table, Waiting } from '../parts';
import { Audits } from './audit';
import { Buckets } from './buckets';
import { Changes } from './changes';
import { Letters } from './letters';
import { Live, OneDay } from './plots';
import { SourceView } from './source';
import type { Status } from './status';
import { Tables } from './tables';

const EVERY = 2000;

const TONES = { processing: 'busy', active: 'good', stopped: 'quiet', failed: 'bad' } as const;

export default function ServicePage() {
  const { value, error } = useAnswer('status', (signal) => getStatus<Status>(signal), EVERY);
  return (
    <>
      <Failure error={error} />
      {!value && !error && <Waiting what="Asking how the service is" />}
      {value && (
        <>
          <p class="summary" data-testid="service-summary">
            {value.served ? `Devices get ${value.served}.` : 'No version of the sync config is served yet.'} <span class="soft">Headwater {value.headwater}, checkpoint {value.checkpoint ?? 'none yet'}</span>
          </p>
          {value.keys.map((each) => (
            <div class="failure" role="alert" key={each.address}>
              <span>
                The keys of tokens at {each.address} can't be fetched <For since={each.since} />: {each.cause}
              </span>
            </div>
          ))}
          <Section title="Sources" testid="sources">
            {value.sources.map((source) => (
              <SourceView source={source} key={source.source} />
            ))}
            {!value.sources.length && <p class="none">The config names no source.</p>}
          </Section>
          <Live status={value} />
          <OneDay />
          <Section title="Versions served or in progress">
            <Table
              label="Versions"
              rows={value.versions}
              keyOf={({ id }) => id}
              none="No version of the sync config is deployed."
              columns={[
                { title: 'Version', cell: ({ id }) => id },
                { title: 'State', cell: ({ state }) => <Mark tone={TONES[state]}>{state}</Mark> },
                { title: 'From', cell: ({ origin }) => (origin === 'file' ? 'the file' : 'a command') },
                { title: 'Deployed', cell: ({ created }) => <Ago at={created} /> },
                { title: 'Note', cell: ({ note }) => note ?? '', wide: true }
              ]}
            />
          </Section>
        </>
      )}
      <Tables status={value} />
      <Buckets />
      <Letters />
      <Audits />
      <Changes />
    </>
  );
}
