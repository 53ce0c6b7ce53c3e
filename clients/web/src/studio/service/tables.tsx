// The tables that the sync config reads, and how each stands.

import { getDiagnostics } from '../api';
import { useAnswer } from '../hooks';
import { Ago, type Column, Failure, Mark, Section, Table } from '../parts';
import { count, counted, span } from '../words';
import { type Computed, type Diagnostics, type Status, tableName, type TableStatus } from './status';

type Line = TableStatus & { source: string; compared: string };

const USES = (line: Line): string =>
  [line.data_queries && 'rows', line.parameter_queries && 'lookups'].filter(Boolean).join(', ');

const COLUMNS: Column<Line>[] = [
  { title: 'Table', cell: (line) => <code>{tableName(line)}</code> },
  { title: 'Source', cell: ({ source }) => source },
  { title: 'Read for', cell: USES },
  { title: 'Key', cell: ({ replication_id }) => replication_id.join(', ') || '–' },
  {
    title: 'State',
    wide: true,
    cell: ({ errors, compared }) => (
      <>
        {errors.map(({ level, message }) => (
          <p key={message}>
            <Mark tone={level === 'fatal' ? 'bad' : 'busy'}>{message}</Mark>
          </p>
        ))}
        {compared && <Mark tone="busy">compared with the source: {compared}</Mark>}
        {!errors.length && !compared && <Mark tone="good">followed</Mark>}
      </>
    )
  }
];

const COMPUTED: Column<Computed & { source: string }>[] = [
  { title: 'Computed table', cell: ({ name }) => <code>{name}</code> },
  { title: 'Rows', cell: ({ rows }) => count(rows), number: true },
  { title: 'Changed last', cell: ({ changed }) => count(changed), number: true },
  { title: 'Took', cell: ({ seconds }) => span(seconds), number: true },
  { title: 'As of', cell: ({ at }) => <Ago at={at} /> },
  {
    title: 'State',
    wide: true,
    cell: (each) =>
      each.code ? (
        <Mark tone="bad">
          {each.code} {each.what} <span class="remedy">{each.fix}</span>
        </Mark>
      ) : (
        <Mark tone={each.at ? 'good' : 'busy'}>{each.at ? 'up to date' : 'not computed yet'}</Mark>
      )
  }
];

export function Tables({ status }: { status: Status | undefined }) {
  const { value, error } = useAnswer('diagnostics', (signal) => getDiagnostics<Diagnostics>(signal), 15_000);
  const compared = new Map(
    status?.sources.flatMap((source) =>
      source.compared.map((each) => [`${source.source} ${each.table}`, each.reason] as const)
    ) ?? []
  );
  const lines: Line[] =
    value?.active_sync_rules?.connections.flatMap(({ id, tables }) =>
      tables.map((table) => ({
        ...table,
        source: id,
        compared: compared.get(`${id} ${table.schema}.${table.name}`) ?? compared.get(`${id} ${table.name}`) ?? ''
      }))
    ) ?? [];
  const wrong = lines.filter(({ errors }) => errors.length);
  const ordered = [...wrong, ...lines.filter(({ errors }) => !errors.length)];
  const computed = status?.sources.flatMap((source) => source.computed.map((each) => ({ ...each, source: source.source }))) ?? [];
  return (
    <Section title="Tables" testid="tables" beside={
        value && (
          <span>
            {counted(lines.length, 'table')}
            {wrong.length > 0 && `, ${count(wrong.length)} with a problem`}
          </span>
        )
      }>
      <Failure error={error} />
      {value && (
        <Table
          label="Tables"
          rows={ordered}
          text={({ schema, name, errors }) => `${schema}.${name} ${errors.map(({ message }) => message).join(' ')}`}
          columns={COLUMNS}
          keyOf={({ source, schema, name }) => `${source} ${schema}.${name}`}
          none="No sync config is served yet."
        />
      )}
      {computed.length > 0 && (
        <Table label="Computed tables" rows={computed} columns={COMPUTED} keyOf={({ source, name }) => `${source} ${name}`} none="" />
      )}
    </Section>
  );
}
