// Uploads that the source refused and that are parked: look in, try again, throw away.

import { useState } from 'preact/hooks';
import { get, post } from '../api';
import { useAnswer, useMayEdit, usePage } from '../hooks';
import { Ago, type Column, Confirmed, Failure, Mark, PAGE, Pager, Section, Table, Waiting, steps } from '../parts';
import { count, counted } from '../words';

interface Letter {
  id: string;
  source: string | null;
  user: string;
  client: string;
  first_op: number;
  last_op: number;
  at: number;
  attempts: number;
  code: string;
  sqlstate: string | null;
  message: string;
}

interface Outcome {
  id: string;
  outcome: string;
  code: string | null;
  message: string | null;
}

/** Uploads are not configured, or the source has no records of any. */
const NOT_USED = new Set(['HW_6202', 'HW_6120']);

interface Page {
  letters: Letter[];
  more: boolean;
}

function Inside({ id }: { id: string }) {
  const { value, error } = useAnswer(`letter ${id}`, (signal) => get<{ crud: unknown }>('letter', { id }, signal));
  return (
    <>
      <Failure error={error} />
      {value ? (
        <pre tabIndex={0} aria-label={`Upload ${id}`} data-testid="letter-inside">
          {JSON.stringify(value.crud, null, 2)}
        </pre>
      ) : (
        !error && <Waiting what="Reading it" />
      )}
    </>
  );
}

export function Letters() {
  const mayEdit = useMayEdit();
  const [before, setBefore] = useState<string[]>([]);
  const [open, setOpen] = useState<string>();
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [outcomes, setOutcomes] = useState<Outcome[]>([]);
  const after = before.at(-1);
  const answer = usePage(
    'letters',
    before,
    (signal) => get<Page>('letters', { limit: PAGE, ...(after === undefined ? {} : { after }) }, signal),
    15_000
  );
  const { value, error } = answer;
  const act = (path: string) => async () => {
    const { results } = await post<{ results: Outcome[] }>(`letters/${path}`, { ids: [...chosen] });
    setOutcomes(results);
    setChosen(new Set());
    answer.again();
  };
  const toggle = (id: string) =>
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
    { title: 'Client', cell: ({ client }) => <code>{client}</code> },
    { title: 'Writes', cell: ({ first_op, last_op }) => count(last_op - first_op + 1), number: true },
    {
      title: 'Why',
      wide: true,
      cell: ({ code, sqlstate, message }) => (
        <>
          <code class="soft">{sqlstate ?? code}</code> {message}
        </>
      )
    },
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
  if (error && NOT_USED.has(error.code)) {
    return (
      <Section title="Parked uploads" testid="letters">
        <p class="none">No device uploads through this service.</p>
      </Section>
    );
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
            <Confirmed label="Try again…" title="Try again" question="They are written to the source as if the devices sent them now." act={act('retry')} testid="retry-letters" />
            <Confirmed label="Throw away…" title="Throw away" question="The writes are lost. The devices were told of the refusal already." act={act('discard')} testid="discard-letters" />
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
      {outcomes.length > 0 && (
        <ul class="plain" role="status" data-testid="letter-outcomes">
          {outcomes.map(({ id, outcome, code, message }) => (
            <li key={id}>
              <Mark tone={outcome === 'applied' || outcome === 'discarded' ? 'good' : 'bad'}>
                {id} {outcome}
              </Mark>{' '}
              {code && <code class="soft">{code}</code>} {message}
            </li>
          ))}
        </ul>
      )}
      {value && (
        <Pager
          first={value.place.length * PAGE}
          shown={value.letters.length}
          {...steps(value.place, value.more && value.letters.at(-1)!.id, setBefore)}
        />
      )}
    </Section>
  );
}
