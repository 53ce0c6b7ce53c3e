// Named cases: clients that are kept, and what is expected of them.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { type Client, type Typed, typedOf } from '../client';
import { useAction, useAnswer, useMayEdit } from '../hooks';
import { Confirmed, Dialog, Failure, Field, Mark, Several } from '../parts';
import { counted } from '../words';

export interface Case {
  name: string;
  client: Client;
  expect?: unknown;
  author?: string | null;
}

export interface CaseResult {
  name: string;
  passed: boolean;
  failures: string[];
  rows: Record<string, number>;
}

export function Results({ results }: { results: CaseResult[] }) {
  return (
    <ul class="plain" data-testid="case-results">
      <Several items={results} most={20} show={(each) => (
        <li key={each.name} data-passed={each.passed}>
          <Mark tone={each.passed ? 'good' : 'bad'}>{each.name}</Mark>{' '}
          <span class="soft">{counted(Object.values(each.rows).reduce((sum, rows) => sum + rows, 0), 'row')}</span>
          {each.failures.map((failure) => (
            <p key={failure}>{failure}</p>
          ))}
        </li>
      )} />
    </ul>
  );
}

function Keep({ client, close, kept }: { client: Client; close: () => void; kept: () => void }) {
  const [name, setName] = useState('');
  const [expect, setExpect] = useState('');
  const action = useAction(async () => {
    let parsed: unknown;
    try {
      parsed = expect.trim() ? JSON.parse(expect) : undefined;
    } catch {
      throw new Error('What is expected is no JSON');
    }
    await post('cases', { case: { name: name.trim(), client, ...(parsed === undefined ? {} : { expect: parsed }) } });
    kept();
  });
  return (
    <Dialog title={`Keep ${client.user} as a case`} close={close}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run();
        }}
      >
        <Field label="Name" value={name} change={setName} testid="case-name" />
        <Field label="Expected" lines={3} value={expect} change={setExpect} hint='JSON by table, as {"lists": {"rows": 3, "has": ["l1"], "lacks": ["l9"]}}; may stay empty' testid="case-expect" />
        <Failure error={action.error} />
        <div class="actions">
          <button type="submit" class="primary" disabled={!name.trim() || action.busy} data-testid="case-keep">
            Keep
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function Cases(props: { client: Client | undefined; text: string; valid: boolean; choose: (typed: Typed) => void }) {
  const mayEdit = useMayEdit();
  const [keeping, setKeeping] = useState(false);
  const [ran, setRan] = useState<{ text: string; results: CaseResult[] }>();
  const cases = useAnswer('cases', (signal) => get<{ cases: Case[] }>('cases', {}, signal));
  const run = useAction(async () => {
    const { results } = await post<{ results: CaseResult[] }>('cases/run', { content: props.text });
    setRan({ text: props.text, results });
  });
  const found = cases.value?.cases ?? [];
  return (
    <div class="cases" data-testid="cases">
      <Failure error={cases.error} />
      {found.length > 0 && (
        <ul class="plain">
          <Several items={found} most={20} show={(each) => (
            <li key={each.name} class="case">
              <button type="button" class="link" onClick={() => props.choose(typedOf(each.client))}>
                {each.name}
              </button>
              <span class="soft">{each.client.user}</span>
              {mayEdit && (
                <Confirmed
                  label="Forget…"
                  title={`Forget ${each.name}`}
                  question="The case is deleted for everybody."
                  act={async () => {
                    await post('cases/delete', { name: each.name });
                    cases.again();
                  }}
                />
              )}
            </li>
          )} />
        </ul>
      )}
      <div class="actions">
        {mayEdit && props.client && (
          <button type="button" class="small" onClick={() => setKeeping(true)} data-testid="keep-case">
            Keep as a case
          </button>
        )}
        {found.length > 0 && (
          <button type="button" class="small" disabled={!props.valid || run.busy} onClick={() => void run.run()} data-testid="run-cases">
            Run all cases
          </button>
        )}
      </div>
      <Failure error={run.error} />
      {ran && (
        <>
          {ran.text !== props.text && <p class="soft">By the text before your last change:</p>}
          <Results results={ran.results} />
        </>
      )}
      {keeping && props.client && (
        <Keep
          client={props.client}
          close={() => setKeeping(false)}
          kept={() => {
            setKeeping(false);
            cases.again();
          }}
        />
      )}
    </div>
  );
}
