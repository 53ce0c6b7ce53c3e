// Uploads that the source refused and that are parked: look in, try again, throw away.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { useAnswer, useMayEdit } from '../hooks';
import { Ago, type Column, Confirmed, Failure, Section, Table, Waiting } from '../parts';
import { count, counted } from '../words';

interface Letter {
  id: number;
  source: string;
  user: string;
  table: string | null;
  op: string | null;
  at: number;
  error: string;
  attempts: number;
}

interface Page {
  letters: Letter[];
  more: boolean;
}

const PAGE = 50;

function Inside({ id }: { id: number }) {
  const { value, error } = useAnswer(`letter ${id}`, (signal) => get<Record<string, unknown>>(`letters/${id}`, {}, signal));
  return (
    <>
      <Failure error={error} />
      {value ? (
        <pre tabIndex={0} aria-label={`Upload ${id}`} data-testid="letter-inside">
          {JSON.stringify(value, null, 2)}
        </pre>
      ) : (
        !error && <Waiting what="Reading it" />
      )}
    </>
  );
}

export function Letters() {
  const mayEdit = useMayEdit();
  const [before, setBefore] = useState<number[]>([]);
  const [open, setOpen] = useState<number>();
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const after = before.at(-1);
  const answer = useAnswer(
    `letters ${after}`,
    (signal) => get<Page>('letters', { limit: PAGE, ...(after === undefined ? {} : { after }) }, signal),
    15_000
  );
  const { value, error } = answer;
  const act = (path: string) => async () => {
    await post(`letters/${path}`, { ids: [...chosen] });
    setChosen(new Set());
    answer.again();
  };
  const toggle = (id: number) =>
    setChosen((now) => {
      const next = new Set(now);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  const columns: Column<Letter>[] = [
    {
      title: 'Upload',
      cell: ({ id }) => (
        <button type="button" class="link" aria-expanded={open === id} onClick={() => setOpen(open === id ? undefined : id)}>
          {id}
        </button>
      )
    },
    { title: 'User', cell: ({ user }) => user },
    { title: 'Source', cell: ({ source }) => source },
    { title: 'Write', cell: ({ op, table }) => [op, table].filter(Boolean).join(' ') },
    { title: 'Why', cell: ({ error }) => error, wide: true },
    { title: 'When', cell: ({ at }) => <Ago at={at} /> },
    { title: 'Attempts', cell: ({ attempts }) => count(attempts), number: true }
  ];
  if (mayEdit) {
    columns.unshift({
      title: 'Chosen',
      tools: true,
      cell: ({ id }) => (
        <input type="checkbox" aria-label={`Choose upload ${id}`} checked={chosen.has(id)} onChange={() => toggle(id)} />
      )
    });
  }
  return (
    <Section
      title="Parked uploads"
      testid="letters"
      beside={
        mayEdit &&
        chosen.size > 0 && (
          <>
            {counted(chosen.size, 'chosen', 'chosen')}
            <Confirmed label="Try again" title="Try again" question="They are written to the source as if the devices sent them now." act={act('retry')} testid="retry-letters" />
            <Confirmed label="Throw away" title="Throw away" question="The writes are lost. The devices were told of the refusal already." act={act('discard')} testid="discard-letters" />
          </>
        )
      }
    >
      <Failure error={error} />
      {!value && !error && <Waiting what="Asking for parked uploads" />}
      {value && (
        <Table
          label="Parked uploads"
          rows={value.letters}
          columns={columns}
          keyOf={({ id }) => id}
          none="No upload is parked."
          below={({ id }) => (open === id ? <Inside id={id} /> : null)}
        />
      )}
      <div class="actions">
        {before.length > 0 && (
          <button type="button" class="small" onClick={() => setBefore(before.slice(0, -1))}>
            Newer
          </button>
        )}
        {value?.more && (
          <button type="button" class="small" onClick={() => setBefore([...before, value.letters.at(-1)!.id])}>
            Further
          </button>
        )}
      </div>
    </Section>
  );
}
