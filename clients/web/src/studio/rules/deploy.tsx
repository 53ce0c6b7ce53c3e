// Before a deploy: what it costs, the cases, and what changes in the text; then a note, and the deploy itself.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { useAction, useAnswer } from '../hooks';
import { Dialog, Failure, Field, Mark, Table, Waiting } from '../parts';
import { count, counted, size, span } from '../words';
import { type Case, type CaseResult, Results } from './cases';
import { Difference } from './editor';
import type { Finding } from './findings';

interface Definition {
  name: string;
  change: string;
  before: string | null;
  rows: number | null;
  bytes: number | null;
  buckets: number | null;
}

interface CostAnswer {
  same: boolean;
  rows_evaluated: number | null;
  definitions: Definition[];
  renamed: { before: string; now: string }[];
  devices: { connected: number; affected: number | null; rows: number | null; bytes: number | null };
  seconds: number | null;
  space_bytes: number | null;
  note: string;
}

const some = (number: number | null, words: (number: number) => string = count): string =>
  number === null ? 'not known' : words(number);

function Cost({ text }: { text: string }) {
  const { value, error } = useAnswer('cost', (signal) => post<CostAnswer>('cost', { content: text }, signal));
  if (error) return <Failure error={error} />;
  if (!value) return <Waiting what="Estimating what it costs" />;
  const { devices } = value;
  return (
    <div data-testid="cost">
      {value.same && <p>Nothing has to be processed: devices are sent what they have.</p>}
      <dl class="facts">
        <dt>Rows to evaluate</dt>
        <dd>{some(value.rows_evaluated)}</dd>
        <dt>Devices that download again</dt>
        <dd>
          {some(devices.affected)} of {counted(devices.connected, 'connected device')}
          {devices.rows !== null && `, ${counted(devices.rows, 'row')}`}
          {devices.bytes !== null && `, ${size(devices.bytes)}`}
        </dd>
        <dt>Takes about</dt>
        <dd>{some(value.seconds, span)}</dd>
        <dt>Room in the store</dt>
        <dd>{some(value.space_bytes, size)}</dd>
      </dl>
      {value.renamed.length > 0 && (
        <p>The same rows under another name, which devices download again: {value.renamed.map(({ before, now }) => `${before} as ${now}`).join(', ')}.</p>
      )}
      {value.definitions.length > 0 && (
        <Table
          label="Bucket definitions"
          rows={value.definitions}
          keyOf={({ name, change }) => `${name} ${change}`}
          none=""
          columns={[
            { title: 'Definition', cell: ({ name }) => <code>{name}</code>, wide: true },
            { title: 'Change', cell: ({ change, before }) => (before ? `${change}, was ${before}` : change) },
            { title: 'Buckets', cell: ({ buckets }) => some(buckets), number: true },
            { title: 'Rows', cell: ({ rows }) => some(rows), number: true },
            { title: 'Size', cell: ({ bytes }) => some(bytes, size), number: true }
          ]}
        />
      )}
      {value.note && <p class="soft">{value.note}</p>}
    </div>
  );
}

function CasesRun({ text }: { text: string }) {
  const { value, error } = useAnswer('cases', async (signal) => {
    const { cases } = await get<{ cases: Case[] }>('cases', {}, signal);
    return cases.length ? (await post<{ results: CaseResult[] }>('cases/run', { content: text }, signal)).results : [];
  });
  if (error) return <Failure error={error} />;
  if (!value) return <Waiting what="Running the cases" />;
  if (!value.length) return <p class="soft">No cases are kept.</p>;
  const failed = value.filter(({ passed }) => !passed).length;
  return (
    <>
      <p>
        <Mark tone={failed ? 'bad' : 'good'}>
          {failed ? `${count(failed)} of ${counted(value.length, 'case')} fail` : `${counted(value.length, 'case')} pass`}
        </Mark>
      </p>
      <Results results={value} />
    </>
  );
}

export function Deploy(props: { before: string; text: string; expected: number | undefined; close: () => void; done: () => void }) {
  const [note, setNote] = useState('');
  const [force, setForce] = useState(false);
  const action = useAction(async () => {
    const expected = props.expected === undefined ? {} : { expected: props.expected };
    await post('deploy', { content: props.text, note: note.trim(), force, ...expected });
    props.done();
  });
  const refused = (action.error?.data['findings'] ?? []) as Finding[];
  return (
    <Dialog title="Deploy this text" wide close={props.close} testid="deploy-dialog">
      <div class="parts">
        <div>
          <h3>Cost</h3>
          <Cost text={props.text} />
        </div>
        <div>
          <h3>Cases</h3>
          <CasesRun text={props.text} />
        </div>
      </div>
      <h3>Changes</h3>
      <Difference before={props.before} after={props.text} label="What changes in the text" />
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <Field label="Note for the history" value={note} change={setNote} testid="deploy-note" />
        <Failure error={action.error} />
        {refused.length > 0 && (
          <>
            <ul class="plain" data-testid="refused">
              {refused.map((finding, index) => (
                <li key={index}>
                  <code class="code">{finding.code}</code> {finding.message}
                  {finding.suggestion && <span class="remedy">{finding.suggestion}</span>}
                </li>
              ))}
            </ul>
            {refused.every(({ severity }) => severity !== 'fatal') && (
              <label class="tick">
                <input type="checkbox" checked={force} onChange={(event) => setForce(event.currentTarget.checked)} />
                Deploy it in spite of these warnings
              </label>
            )}
          </>
        )}
        <div class="actions">
          <button type="submit" class="primary" disabled={action.busy} data-testid="deploy-now">
            Deploy
          </button>
          <button type="button" onClick={props.close}>
            Not now
          </button>
        </div>
      </form>
    </Dialog>
  );
}
