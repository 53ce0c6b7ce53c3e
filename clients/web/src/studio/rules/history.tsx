// All versions, what each changed, and going back to one.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { useAnswer, useMayEdit, usePage } from '../hooks';
import { Ago, type Column, Confirmed, Dialog, Failure, Mark, PAGE, Pager, steps, Table, Waiting } from '../parts';
import type { Version } from '../service/status';
import { Difference } from './editor';

const TONES = { processing: 'busy', active: 'good', stopped: 'quiet', failed: 'bad' } as const;
function Changes({ version, before, textOf }: { version: Version; before: Version | undefined; textOf: (id: number) => Promise<string> }) {
  const { value, error } = useAnswer(`difference ${version.id}`, () =>
    Promise.all([before ? textOf(before.id) : '', textOf(version.id)])
  );
  return (
    <>
      <Failure error={error} />
      {!value && !error && <Waiting what="Reading both texts" />}
      {value && <Difference before={value[0]} after={value[1]} label={`What version ${version.id} changed`} />}
    </>
  );
}

export function History(props: {
  /** The newest version that the person knows of. */
  newest: number | undefined;
  textOf: (id: number) => Promise<string>;
  close: () => void;
  take: (text: string) => void;
  rolledBack: () => void;
}) {
  const mayEdit = useMayEdit();
  const [open, setOpen] = useState<number>();
  // What the person saw when this was opened: a roll back must not undo a deploy unseen.
  const [newest] = useState(props.newest);
  // The last ids of the pages before this one.
  const [ends, setEnds] = useState<number[]>([]);
  const end = ends.at(-1);
  const { value, error } = usePage(
    'versions',
    ends,
    (signal) =>
      get<{ versions: Version[] }>(
        'versions',
        { limit: PAGE + 1, ...(end === undefined ? {} : { before: end }) }, // one more, which the last is compared with
        signal
      ),
    5000
  );
  const shown = value?.versions.slice(0, PAGE) ?? [];
  const columns: Column<Version>[] = [
    { title: 'Version', cell: ({ id }) => id },
    { title: 'State', cell: ({ state }) => <Mark tone={TONES[state]}>{state}</Mark> },
    { title: 'Deployed', cell: ({ created }) => <Ago at={created} /> },
    { title: 'By', cell: ({ author, origin }) => author || (origin === 'file' ? 'the file' : 'a command') },
    {
      title: 'Note',
      wide: true,
      cell: ({ message, note }) => (
        <>
          {message} {note && <span class="soft">{note}</span>}
        </>
      )
    },
    {
      title: 'Actions',
      tools: true,
      cell: (version) => (
        <>
          <button
            type="button"
            class="small"
            aria-expanded={open === version.id}
            onClick={() => setOpen(open === version.id ? undefined : version.id)}
          >
            {open === version.id ? 'Hide its changes' : 'What it changed'}
          </button>
          <button type="button" class="small" onClick={() => void props.textOf(version.id).then(props.take)}>
            Take into the editor
          </button>
          {mayEdit && version.state === 'stopped' && (
            <Confirmed
              label="Roll back…"
              title={`Roll back to version ${version.id}`}
              question="Its text is deployed again as a new version. It stays until the sync config file changes."
              act={async () => {
                await post('rollback', { id: version.id, ...(newest === undefined ? {} : { expected: newest }) });
                props.rolledBack();
              }}
              testid="roll-back"
            />
          )}
        </>
      )
    }
  ];
  const before = (version: Version) => value?.versions.find(({ id }) => id < version.id);
  return (
    <Dialog title="History" wide close={props.close} testid="history-dialog">
      <Failure error={error} />
      {!value && !error && <Waiting what="Reading the history" />}
      {value && (
        <Table
          label="Versions"
          rows={shown}
          columns={columns}
          keyOf={({ id }) => id}
          none="Nothing was deployed yet."
          below={(version) =>
            open === version.id ? <Changes version={version} before={before(version)} textOf={props.textOf} /> : null
          }
        />
      )}
      {value && (
        <Pager
          first={value.place.length * PAGE}
          shown={shown.length}
          {...steps(value.place, value.versions.length > PAGE && shown.at(-1)!.id, setEnds)}
        />
      )}
    </Dialog>
  );
}
