// The rows of one table, as they are in the SQLite of this browser: shown, and written, whether there is a network or not.
import { PowerSyncDatabase, Schema, type SyncStatus } from '@powersync/web';
import { AppSchema } from './AppSchema';
import { Connector, upload_refusals } from './connector';
import { table, type Field } from './table';

type Row = { id: string } & Record<string, unknown>;
type Refusal = { id: string; message: string };
type Choice = { value: string; text: unknown };

const MOST = 200;
const user = new URLSearchParams(location.search).get('user') ?? import.meta.env.VITE_USER ?? '';
const quoted = (name: string) => `"${name.replaceAll('"', '""')}"`;
const element = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;

const db = new PowerSyncDatabase({
  schema: new Schema([...AppSchema.tables, upload_refusals.copyWithName('upload_refusals')]),
  database: { dbFilename: `app-${encodeURIComponent(user)}.db` }
});

function start() {
  (element<HTMLFormElement>('user').elements.namedItem('user') as HTMLInputElement).value = user;
  if (!user) return;
  db.registerListener({ statusChanged: showStatus });
  db.watchWithCallback(
    `SELECT *, count(*) OVER () AS "all rows" FROM ${quoted(table.name)} ORDER BY ${quoted(table.title)}, id LIMIT ${MOST}`,
    [],
    { onResult: (result) => showRows((result.rows?._array ?? []) as Row[]), onError: showTrouble }
  );
  if (table.operations.includes('insert')) void showForm();
  db.watchWithCallback('SELECT id, message FROM upload_refusals ORDER BY at', [], {
    onResult: (result) => showRefusals((result.rows?._array ?? []) as Refusal[])
  });
  void db.connect(new Connector(user));
}

function showStatus({ connected, hasSynced, lastSyncedAt, dataFlowStatus }: SyncStatus) {
  const state = !connected ? 'not connected' : hasSynced ? `synced at ${lastSyncedAt?.toLocaleTimeString()}` : 'syncing';
  element('status').textContent = state;
  element('status').dataset.state = connected && hasSynced ? 'synced' : 'waiting';
  const error = dataFlowStatus.downloadError ?? dataFlowStatus.uploadError;
  if (error) showTrouble(`${reasonIn(error.message)}. It is tried again.`);
  else if (connected && element('trouble').textContent?.endsWith('again.')) showTrouble('');
}

/** What Headwater says is wrong, or that it does not answer. */
function reasonIn(message: string): string {
  const described = /"description":"(.*?)"/.exec(message)?.[1];
  return described ? `Headwater: ${described}` : `${message}: is \`headwater serve\` running?`;
}

function showTrouble(trouble: unknown) {
  element('trouble').textContent = trouble instanceof Error ? trouble.message : String(trouble);
}

function showRefusals(refusals: Refusal[]) {
  element('refused').replaceChildren(
    ...refusals.map(({ id, message }) => {
      const item = Object.assign(document.createElement('li'), { textContent: `Refused: ${message} ` });
      const seen = Object.assign(document.createElement('button'), { textContent: 'Dismiss' });
      seen.onclick = () => run('DELETE FROM upload_refusals WHERE id = ?', [id]);
      item.append(seen);
      return item;
    })
  );
}

function showRows(rows: Row[]) {
  element('rows').replaceChildren(...rows.map(showRow));
  const total = Number(rows[0]?.['all rows'] ?? 0);
  const shown = total > rows.length ? `, ${rows.length} of them shown` : '';
  element('more').textContent = `${total} ${total === 1 ? 'row' : 'rows'}${shown}. ${table.note}`;
}

function showRow(row: Row) {
  const item = document.createElement('li');
  const title = document.createElement('input');
  title.defaultValue = String(row[table.title] ?? '');
  title.ariaLabel = table.title;
  title.readOnly = !table.changeable;
  title.onchange = () =>
    run(`UPDATE ${quoted(table.name)} SET ${quoted(table.title)} = ? WHERE id = ?`, [title.value, row.id]);
  item.append(title);
  if (table.operations.includes('delete')) {
    const button = document.createElement('button');
    button.textContent = 'Delete';
    button.onclick = () => run(`DELETE FROM ${quoted(table.name)} WHERE id = ?`, [row.id]);
    item.append(button);
  }
  return item;
}

const run = (statement: string, values: unknown[]) => db.execute(statement, values).catch(showTrouble);

async function showForm() {
  const form = element<HTMLFormElement>('new');
  for (const field of table.fields) {
    const input = inputFor(field);
    if (!input) continue;
    const label = Object.assign(document.createElement('label'), { textContent: `${field.name} ` });
    label.append(input);
    form.append(label);
  }
  form.append(Object.assign(document.createElement('button'), { textContent: 'Add' }));
  form.onsubmit = (event) => {
    event.preventDefault();
    const values = table.fields.map((field) => valueOf(field, new FormData(form)));
    const names = ['id', ...table.fields.map(({ name }) => quoted(name))];
    void run(`INSERT INTO ${quoted(table.name)} (${names}) VALUES (${names.map(() => '?')})`, [
      crypto.randomUUID(),
      ...values
    ]);
    form.reset();
  };
  form.hidden = false;
}

/** What a person fills in; null where the value comes by itself. */
function inputFor(field: Field): HTMLElement | null {
  if (field.kind === 'text' || field.kind === 'number') {
    const type = field.kind;
    return Object.assign(document.createElement('input'), { name: field.name, type, required: true });
  }
  if (field.kind !== 'choice' && field.kind !== 'parent') return null;
  const select = Object.assign(document.createElement('select'), { name: field.name, required: true });
  const offer = (options: [value: string, text: string][]) =>
    select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (field.kind === 'choice') offer(field.choices.map((each) => [each, each]));
  else
    db.watchWithCallback(
      `SELECT DISTINCT ${quoted(field.column)} AS value, ${quoted(field.title)} AS text FROM ${quoted(field.table)}
       WHERE ${quoted(field.column)} IS NOT NULL ORDER BY text LIMIT ${MOST}`,
      [],
      {
        onResult: (result) =>
          offer(((result.rows?._array ?? []) as Choice[]).map(({ value, text }) => [value, String(text ?? value)]))
      }
    );
  return select;
}

function valueOf(field: Field, form: FormData): unknown {
  switch (field.kind) {
    case 'user':
      return user;
    case 'now':
      return new Date().toISOString();
    case 'today':
      return new Date().toISOString().slice(0, 10);
    case 'value':
      return field.value;
    default:
      return form.get(field.name);
  }
}

start();
