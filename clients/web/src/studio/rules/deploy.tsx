// Before a deploy: what it costs, the cases, and what changes in the text; then a note, and the deploy itself.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import type { Devices } from '../client';
import { type Answer, useAction, useAnswer } from '../hooks';
import { Dialog, Failure, Field, Mark, Table, Waiting } from '../parts';
import { count, counted, sentence, size, span } from '../words';
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

function Cost({ cost: { value, error } }: { cost: Answer<CostAnswer> }) {
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
      {value.note && <p class="soft">{sentence(value.note)}</p>}
    </div>
  );
}

function Definitions({ definitions }: { definitions: Definition[] }) {
  return (
    <Table
      label="Bucket definitions"
      rows={definitions}
      keyOf={({ name, change }) => `${name} ${change}`}
      text={({ name, change }) => `${name} ${change}`}
      none=""
      columns={[
        { title: 'Bucket definition', cell: ({ name }) => <code>{name}</code>, wide: true },
        { title: 'Change', cell: ({ change, before }) => (before ? `${change}, was ${before}` : change), wide: true },
        { title: 'Buckets', cell: ({ buckets }) => some(buckets), number: true },
        { title: 'Rows', cell: ({ rows }) => some(rows), number: true },
        { title: 'Size', cell: ({ bytes }) => some(bytes, size), number: true }
      ]}
    />
  );
}

const ASKED_USERS = 5; // each is a comparison over all rows of the store

interface Balance {
  user: string;
  gained: number;
  lost: number;
  changed: number;
}

/** What some of the connected users would gain and lose, one after the other, once it is asked for. */
function Balances({ text }: { text: string }) {
  const [found, setFound] = useState<Balance[]>();
  const action = useAction(async () => {
    setFound(undefined);
    const { clients } = await get<Devices>('clients', { limit: 200 });
    const users = [...new Set(clients.map(({ user }) => user))].slice(0, ASKED_USERS);
    const balances: Balance[] = [];
    for (const user of users) {
      const { tables } = await post<{ tables: Omit<Balance, 'user'>[] }>('compare', { content: text, client: { user } });
      const sum = (part: keyof Omit<Balance, 'user'>) => tables.reduce((total, table) => total + table[part], 0);
      balances.push({ user, gained: sum('gained'), lost: sum('lost'), changed: sum('changed') });
      setFound([...balances]);
    }
    setFound(balances);
  });
  return (
    <div data-testid="balances">
      <h3>Who loses rows</h3>
      <div class="actions">
        <button type="button" class="small" disabled={action.busy} onClick={() => void action.run()} data-testid="ask-balances">
          Ask for {ASKED_USERS} connected users
        </button>
        {action.busy && (
          <span class="soft" role="status">
            Comparing {found ? `, ${counted(found.length, 'user')} done` : ''}
          </span>
        )}
      </div>
      <Failure error={action.error} />
      {found && (found.length > 0 || !action.busy) && (
        <Table
          label="Rows of connected users"
          rows={found}
          keyOf={({ user }) => user}
          none="No device is connected. Compare for a user beside the editor."
          columns={[
            { title: 'User', cell: ({ user }) => <code>{user}</code>, wide: true },
            { title: 'Gains rows', cell: ({ gained }) => count(gained), number: true },
            { title: 'Loses rows', cell: ({ lost }) => (lost ? <Mark tone="bad">{count(lost)}</Mark> : 'none'), number: true },
            { title: 'Changed rows', cell: ({ changed }) => count(changed), number: true }
          ]}
        />
      )}
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
          {failed
            ? `${count(failed)} of ${counted(value.length, 'case')} ${failed === 1 ? 'fails' : 'fail'}`
            : `${counted(value.length, 'case')} ${value.length === 1 ? 'passes' : 'pass'}`}
        </Mark>
      </p>
      <Results results={value} />
    </>
  );
}

export function Deploy(props: { before: string; text: string; expected: number | undefined; close: () => void; done: () => void }) {
  const cost = useAnswer('cost', (signal) => post<CostAnswer>('cost', { content: props.text }, signal));
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
          <Cost cost={cost} />
        </div>
        <div>
          <h3>Cases</h3>
          <CasesRun text={props.text} />
        </div>
      </div>
      {Boolean(cost.value?.definitions.length) && <Definitions definitions={cost.value!.definitions} />}
      <Balances text={props.text} />
      <h3>Changes</h3>
      <Difference before={props.before} after={props.text} label="What changes in the text" />
      <form
        class="open"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
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
        {/* It stays in its place, whatever comes in above it. */}
        <div class="foot">
          <Field label="Note for the history" value={note} change={setNote} testid="deploy-note" />
          <div class="actions">
            <button type="submit" class="primary" disabled={action.busy} data-testid="deploy-now">
              {action.busy ? 'Deploying' : 'Deploy to all devices'}
            </button>
            <button type="button" onClick={props.close}>
              Not now
            </button>
          </div>
        </div>
      </form>
    </Dialog>
  );
}
