// One source: its state and why, lag, slot, work and findings with their remedies.

import { Ago, For, Mark, Several, type Tone } from '../parts';
import { count, size, span } from '../words';
import type { Finding, Progress, Source, Trouble } from './status';

const TONES: Record<string, Tone> = {
  streaming: 'good',
  'snapshotting': 'busy',
  're-syncing': 'busy',
  starting: 'busy',
  applying: 'busy',
  waiting: 'busy',
  retrying: 'bad',
  stopped: 'bad',
  unknown: 'bad'
};

export function Bar({ done }: { done: Progress }) {
  const most = Math.max(done.rows_expected, done.rows, 1);
  return (
    <div class="bar">
      <progress value={done.rows} max={most} aria-label={done.what} />
      <span class="soft">
        {count(done.rows)} of about {count(most)} rows
      </span>
    </div>
  );
}

function Problem({ trouble, over }: { trouble: Trouble; over?: boolean }) {
  return (
    <div class={over ? 'finding' : 'finding bad'}>
      <code class="code">{trouble.code}</code>
      <div>
        <p>
          {trouble.what}
          {trouble.where && <span class="soft"> ({trouble.where})</span>}
        </p>
        {trouble.fix && <p class="remedy">{trouble.fix}</p>}
        <p class="soft">
          <Ago at={trouble.at} />
          {trouble.attempts > 1 && `, ${trouble.attempts} times in a row`}
          {over && ', over since'}
        </p>
      </div>
    </div>
  );
}

function Found({ finding }: { finding: Finding }) {
  return (
    <div class={finding.fatal ? 'finding bad' : 'finding'}>
      <code class="code">{finding.code}</code>
      <div>
        <p>
          {finding.what}
          {finding.since && (
            <span class="soft">
              {' '}
              <For since={finding.since} />
            </span>
          )}
        </p>
        <p class="remedy">{finding.fix}</p>
        {finding.sql.length > 0 && (
          <pre tabIndex={0} aria-label="Statements that fix it">
            {finding.sql.map((each) => (each.trimEnd().endsWith(';') ? each : `${each};`)).join('\n')}
          </pre>
        )}
      </div>
    </div>
  );
}

export function SourceView({ source }: { source: Source }) {
  const { slot } = source;
  return (
    <article class="source" data-testid="source" data-state={source.state}>
      <h3>
        {source.source} <Mark tone={TONES[source.state] ?? 'quiet'}>{source.state}</Mark>
        {source.since && (
          <span class="soft">
            <For since={source.since} />
          </span>
        )}
      </h3>
      {source.why && <p>{source.why}</p>}
      <dl class="facts">
        <dt>Lag</dt>
        <dd>
          {source.lag_bytes === null ? 'not known' : size(source.lag_bytes)}
          {source.lag_seconds !== null && `, ${span(source.lag_seconds)}`}
          {source.lag_bytes === null && source.lag_known_at && (
            <>
              , last known <Ago at={source.lag_known_at} />
            </>
          )}
        </dd>
        <dt>Position</dt>
        <dd>{source.position ? <code>{source.position}</code> : 'none yet'}</dd>
        <dt>Slot</dt>
        <dd>
          {slot ? (
            <>
              <code>{slot.name}</code> {slot.active ? 'in use' : 'not in use'}, {slot.wal_status}
            </>
          ) : (
            'not seen'
          )}
        </dd>
        {slot && (
          <>
            <dt>Log kept</dt>
            <dd>
              {size(slot.held)}
              {slot.limit !== null && slot.left !== null ? `, lost after another ${size(slot.left)}` : ', without limit'}
            </dd>
          </>
        )}
        <dt>Stored since its start</dt>
        <dd>
          {count(source.totals.rows)} rows, {count(source.totals.transactions)} transactions
        </dd>
      </dl>
      {source.work && (
        <p>
          <Mark tone="busy">{source.work}</Mark>
        </p>
      )}
      {source.work && source.done && <Bar done={source.done} />}
      {source.cause ? (
        <Problem trouble={source.cause} />
      ) : (
        source.trouble && (
          <details>
            <summary>The last trouble, which is over</summary>
            <Problem trouble={source.trouble} over />
          </details>
        )
      )}
      <Several items={source.findings} most={10} show={(finding) => <Found finding={finding} key={`${finding.code} ${finding.what}`} />} />
    </article>
  );
}
