// Writing a sync config: what is wrong with it, what it changes for a client, what it costs, and deploying it.

import { EditorView } from '@codemirror/view';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { ApiError, get, getStatus } from '../api';
import { useAnswer, useMayEdit } from '../hooks';
import { Ago, Dialog, Failure, Several, Waiting } from '../parts';
import type { Status, Version } from '../service/status';
import { counted, sentence } from '../words';
import './style.css';
import { Comparison } from './compare';
import { Deploy } from './deploy';
import { Difference, Editor } from './editor';
import { isFatal, mend, mendLabel, mendOf, reveal, type Validated } from './findings';
import { History } from './history';
import { Processing } from './processing';
import type { Schema, Vocabulary } from './words';

const DRAFT = 'headwater-studio-draft';
const NOTHING = 'config:\n  edition: 3\n\nstreams:\n';

/** The text that the editor began with, and the newest version that its author knew then. */
interface Base {
  version: Version | undefined;
  newest: number | undefined;
  text: string;
}

interface Draft {
  version: number | undefined;
  newest: number | undefined;
  text: string;
}

function keptDraft(): Draft | undefined {
  try {
    return JSON.parse(sessionStorage.getItem(DRAFT) ?? '') as Draft;
  } catch {
    return undefined;
  }
}

function keepDraft(draft: Draft | undefined): void {
  if (draft) sessionStorage.setItem(DRAFT, JSON.stringify(draft));
  else sessionStorage.removeItem(DRAFT);
}

async function textOf(id: number): Promise<string> {
  return (await get<{ content: string }>(`versions/${id}`)).content.replaceAll('\r\n', '\n');
}

/** What devices get, or soon will: the newer of both. It may be older than many that failed. */
const served = ({ versions }: Status): Version | undefined =>
  [...versions].sort((one, other) => other.id - one.id).find(({ state }) => state === 'processing' || state === 'active');

/** The newest version alone. */
const newestOf = async (signal?: AbortSignal): Promise<Version | undefined> =>
  (await get<{ versions: Version[] }>('versions', { limit: 1 }, signal)).versions[0];

/** Shows the stream that the address names. */
function showStream(view: EditorView): void {
  const name = new URLSearchParams(location.hash.split('?')[1]).get('stream');
  if (name === null) return;
  const keys = new Set([name, JSON.stringify(name), `'${name}'`].map((key) => `${key}:`));
  const { doc } = view.state;
  for (let number = 1; number <= doc.lines; number++) {
    const line = doc.line(number);
    if (/^\s/.test(line.text) && keys.has(line.text.trim())) {
      view.dispatch({ selection: { anchor: line.to }, effects: EditorView.scrollIntoView(line.from, { y: 'center' }) });
      view.focus();
      return;
    }
  }
}

function FindingList({ result, view }: { result: Validated | undefined; view: EditorView | undefined }) {
  if (!result) return <Waiting what="Checking the text" />;
  const wrong = result.findings.filter(isFatal).length;
  return (
    <div data-testid="findings" data-valid={result.valid}>
      <p class="summary" role="status">
        {result.findings.length === 0
          ? 'Nothing is wrong with it. '
          : `${counted(wrong, 'error')}, ${counted(result.findings.length - wrong, 'warning')}. `}
        <span class="soft">{sentence(result.note)}</span>
      </p>
      <ul class="plain">
        <Several items={result.findings} most={20} show={(finding, index) => {
          const edit = mendOf(finding);
          return (
          <li key={`${index} ${finding.code}`} class={isFatal(finding) ? 'finding bad' : 'finding'}>
            <code class="code">{finding.code}</code>
            <div>
              <button type="button" class="link" onClick={() => view && reveal(view, finding)}>
                {finding.place ? `Line ${finding.place.line}` : 'The text'}
              </button>
              : {finding.message}
              {finding.suggestion && <span class="remedy">{finding.suggestion}</span>}
            </div>
            {edit && view && (
              <button type="button" class="small" data-testid="fix" onClick={() => mend(view, edit)}>
                {mendLabel(edit)}
              </button>
            )}
          </li>
          );
        }} />
      </ul>
    </div>
  );
}

function Workbench({ base, first, last, reload }: { base: Base; first: Draft | undefined; last: Version | undefined; reload: () => void }) {
  const mayEdit = useMayEdit();
  const [text, setText] = useState(first?.text ?? base.text);
  const [checked, setChecked] = useState<{ text: string; result: Validated }>();
  const [failure, setFailure] = useState<ApiError>();
  const [view, setView] = useState<EditorView>();
  const [open, setOpen] = useState<'deploy' | 'changes' | 'history'>();
  const words = useAnswer('completion', (signal) => get<Vocabulary>('completion', {}, signal), 60_000);
  const schema = useAnswer('schema', (signal) => get<Schema>('config-schema', {}, signal));
  const known = useMemo(() => ({ words: words.value, schema: schema.value }), [words.value, schema.value]);
  const edited = text !== base.text;
  const newest = first ? first.newest : base.newest;
  const behind = last && newest !== undefined && last.id > newest ? last : undefined;
  // At once, and not when it is next drawn: the page may be left with the next key.
  const change = (next: string) => {
    keepDraft(next === base.text ? undefined : { version: base.version?.id, newest, text: next });
    setText(next);
  };
  // As one edit, which can be undone.
  const replace = (next: string) => view?.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } });
  useEffect(() => {
    if (view) showStream(view);
  }, [view]);
  useEffect(() => {
    if (behind && !edited) reload();
  }, [behind, edited, reload]);
  const result = checked?.text === text ? checked.result : undefined;
  return (
    <>
      <div class="tools-line">
        <span data-testid="base">
          {base.version ? (
            <>
              Version {base.version.id}, deployed <Ago at={base.version.created} />
              {base.version.author && ` by ${base.version.author}`}
            </>
          ) : (
            'Nothing is deployed yet'
          )}
          {edited ? <b data-testid="edited"> · edited</b> : <span class="soft"> · change its text to deploy another</span>}
        </span>
        <span class="actions">
          {edited && (
            <>
              <button type="button" onClick={() => setOpen('changes')}>
                See changes
              </button>
              <button type="button" onClick={() => replace(base.text)} title="Ctrl+Z in the editor brings it back" data-testid="throw-away">
                Throw away my text
              </button>
            </>
          )}
          <button type="button" onClick={() => setOpen('history')} data-testid="history">
            History
          </button>
          {mayEdit && (
            <button
              type="button"
              class="primary"
              data-testid="deploy"
              disabled={!edited || !result?.valid}
              title={edited && result && !result.valid ? 'Mend the errors first' : ''}
              onClick={() => setOpen('deploy')}
            >
              Deploy…
            </button>
          )}
        </span>
      </div>
      {behind && edited && (
        <div class="finding" role="status" data-testid="behind">
          <div>
            Version {behind.id} was deployed meanwhile{behind.author && ` by ${behind.author}`}. Your text is based on an
            earlier one. Look at History, copy what you need, and throw your text away to begin from the newest.
          </div>
        </div>
      )}
      <div class="columns rules-columns">
        <div class="main">
          <Editor
            text={text}
            editable
            change={change}
            found={(text, result) => (setChecked({ text, result }), setFailure(undefined))}
            failed={(error) => error instanceof ApiError && setFailure(error)}
            known={known}
            view={setView}
          />
          <Failure error={failure} />
          <FindingList result={result} view={view} />
          <p class="hint">
            Ctrl+Space completes, Ctrl+. mends the cursor's line, F8 goes to the next finding, Tab leaves the editor.
          </p>
        </div>
        <div class="aside">
          <Comparison text={text} valid={result?.valid ?? false} />
        </div>
      </div>
      {open === 'changes' && (
        <Dialog title={`What you changed in version ${base.version?.id ?? 'none'}`} wide close={() => setOpen(undefined)}>
          <Difference before={base.text} after={text} label="Your changes" />
        </Dialog>
      )}
      {open === 'deploy' && (
        <Deploy
          before={base.text}
          text={text}
          expected={newest}
          close={() => setOpen(undefined)}
          done={() => {
            setOpen(undefined);
            keepDraft(undefined);
            reload();
          }}
        />
      )}
      {open === 'history' && (
        <History
          newest={last?.id}
          textOf={textOf}
          close={() => setOpen(undefined)}
          take={(taken) => {
            replace(taken);
            setOpen(undefined);
          }}
          rolledBack={() => {
            setOpen(undefined);
            reload();
          }}
        />
      )}
    </>
  );
}

export default function RulesPage() {
  const [round, setRound] = useState(0);
  const newest = useAnswer('newest', newestOf, 3000);
  const status = useAnswer('status', (signal) => getStatus<Status>(signal), 2000);
  const begun = useAnswer(`base ${round}`, async (): Promise<{ base: Base; draft: Draft | undefined }> => {
    const [last, status] = await Promise.all([newestOf(), getStatus<Status>()]);
    const version = served(status);
    const text = version ? await textOf(version.id) : NOTHING;
    const draft = keptDraft();
    return { base: { version, newest: last?.id, text }, draft: draft && draft.text !== text ? draft : undefined };
  });
  const reload = useRef(() => setRound((before) => before + 1)).current;
  const { again } = newest;
  useEffect(again, [round, again]);
  return (
    <>
      <Failure error={begun.error ?? newest.error} />
      <Processing status={status.value} last={newest.value} changed={again} />
      {!begun.value && !begun.error && <Waiting what="Reading the sync config" />}
      {begun.value && (
        <Workbench
          key={round}
          base={begun.value.base}
          first={begun.value.draft}
          last={newest.value}
          reload={reload}
        />
      )}
    </>
  );
}
