// What may be written in a sync config: completion, and what a word means. The service says it.

import { type Completion, type CompletionContext, type CompletionResult, snippetCompletion } from '@codemirror/autocomplete';
import type { EditorState } from '@codemirror/state';
import { hoverTooltip } from '@codemirror/view';
import { pathAt, sqlAt } from './language';

interface Column {
  name: string;
  type: string;
  values: string;
  sent: boolean;
}

interface Table {
  name: string;
  schema: string;
  source: string;
  kind: string;
  columns: Column[];
  lacks?: string[];
}

interface Word {
  name: string;
  signature: string;
  doc: string;
}

/** The answer of /completion. */
export interface Vocabulary {
  tables: Table[];
  functions: Word[];
  row_functions: Word[];
  parameters: Word[];
  keywords: string[];
  seen: number | null;
  note: string;
}

/** As much of JSON Schema as describes sync configs. */
export interface Schema {
  description?: string;
  $ref?: string;
  properties?: Record<string, Schema>;
  additionalProperties?: Schema | boolean;
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  oneOf?: Schema[];
  anyOf?: Schema[];
  $defs?: Record<string, Schema>;
}

/** What is known so far; the editor reads it anew each time. */
export interface Known {
  words: Vocabulary | undefined;
  schema: Schema | undefined;
}

const bare = (name: string): string => name.replaceAll('"', '').toLowerCase();
const last = (name: string): string => name.split('.').at(-1)!;

/** The tables that a query names, by the names that its columns can be written with. */
function tablesIn(query: string, tables: readonly Table[]): Map<string, Table> {
  const found = new Map<string, Table>();
  const named = /\b(?:from|join|,)\s+((?:"[^"]+"|[\w$]+)(?:\.(?:"[^"]+"|[\w$]+))*)(?:\s+(?:as\s+)?(?!where\b|on\b|join\b|inner\b|left\b|and\b|or\b)("[^"]+"|[\w$]+))?/gi;
  for (const [, name, alias] of query.matchAll(named)) {
    const table =
      tables.find((each) => bare(each.name) === bare(name!)) ?? tables.find((each) => bare(last(each.name)) === bare(last(name!)));
    if (table) found.set(bare(alias ?? last(name!)), table);
  }
  return found;
}

const columnOption = (column: Column, boost = 0): Completion => ({
  label: column.name,
  type: 'property',
  detail: column.type,
  boost,
  ...(column.sent ? {} : { info: 'The publication leaves it out.' })
});

const tableOption = (table: Table): Completion => ({
  label: table.name,
  type: 'class',
  detail: table.kind === 'table' ? `${table.columns.length} columns` : table.kind,
  boost: table.kind === 'table' || table.kind === 'computed' ? 2 : -2,
  ...(table.lacks?.length ? { info: `No row of it is replicated yet: ${table.lacks.join('; ')}` } : {})
});

const functionOption = (word: Word): Completion => ({
  ...snippetCompletion(word.signature.includes('()') ? `${word.name}()` : `${word.name}(#{})`, {
    label: word.name,
    type: 'function',
    detail: word.signature.slice(word.name.length)
  }),
  info: word.doc
});

const parameterOption = (word: Word): Completion => ({
  ...snippetCompletion(word.signature.replace("'name'", "'#{name}'"), { label: word.signature, type: 'variable' }),
  info: word.doc,
  boost: 1
});

function sqlWords(context: CompletionContext, words: Vocabulary, query: string, before: string): CompletionResult | null {
  const word = /[\w$"'.]*$/.exec(before)![0];
  if (!word && !context.explicit && !/\b(from|join|select|where|and|or|on|by)\s+$/i.test(before)) return null;
  const from = context.pos - word.length;
  const tables = tablesIn(query, words.tables);
  const dot = word.lastIndexOf('.');
  if (dot >= 0) {
    const owner = bare(word.slice(0, dot));
    const table = tables.get(owner) ?? words.tables.find((each) => bare(each.name) === owner);
    const below = words.tables.filter((each) => bare(each.name).startsWith(`${owner}.`));
    const parameters = words.parameters.filter(({ name }) => name.startsWith(`${owner}.`));
    if (parameters.length) return { from, options: parameters.map(parameterOption), validFor: /^[\w.]*$/ };
    if (table) return { from: from + dot + 1, options: table.columns.map((each) => columnOption(each)), validFor: /^[\w"]*$/ };
    return below.length ? { from, options: below.map(tableOption), validFor: /^[\w".]*$/ } : null;
  }
  if (/\b(from|join)\s+$/i.test(before.slice(0, before.length - word.length))) {
    return { from, options: words.tables.map(tableOption), validFor: /^[\w".]*$/ };
  }
  const options = [
    ...[...tables.values()].flatMap((table) => table.columns.map((each) => columnOption(each, 3))),
    ...[...tables.keys()].map((label): Completion => ({ label, type: 'class', detail: 'table of this query' })),
    ...words.parameters.map(parameterOption),
    ...[...words.functions, ...words.row_functions].map(functionOption),
    ...words.keywords.map((label): Completion => ({ label, type: 'keyword', boost: -1 }))
  ];
  return { from, options, validFor: /^[\w"]*$/ };
}

const resolve = (schema: Schema | undefined, root: Schema): Schema | undefined =>
  schema?.$ref ? root.$defs?.[schema.$ref.replace('#/$defs/', '')] : schema;

const parts = (schema: Schema, root: Schema): Schema[] =>
  [schema, ...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].flatMap((each) => resolve(each, root) ?? []);

/** The schemas of what is below a path of keys. */
function schemasAt(root: Schema, path: readonly string[]): Schema[] {
  let found = [root];
  for (const key of path) {
    found = found.flatMap((schema) =>
      parts(schema, root).flatMap(({ properties, additionalProperties, items }) => {
        const below = properties?.[key] ?? (typeof additionalProperties === 'object' ? additionalProperties : undefined);
        const inItems = resolve(items, root)?.properties?.[key];
        return [below, inItems].flatMap((each) => resolve(each, root) ?? []);
      })
    );
  }
  return found.flatMap((schema) => parts(schema, root));
}

function keyWords(context: CompletionContext, root: Schema): CompletionResult | null {
  const line = context.state.doc.lineAt(context.pos);
  const typed = /^[\s-]*([\w]*)$/.exec(line.text.slice(0, context.pos - line.from));
  const word = typed?.[1] ?? '';
  if (!typed || (!word && !context.explicit)) return null;
  const options = schemasAt(root, pathAt(context.state, context.pos)).flatMap(({ properties }) =>
    Object.entries(properties ?? {}).map(([label, below]): Completion => ({
      label,
      type: 'keyword',
      apply: `${label}: `,
      info: (resolve(below, root)?.description ?? below.description ?? '') || ' '
    }))
  );
  return options.length ? { from: context.pos - word.length, options, validFor: /^\w*$/ } : null;
}

export const completion =
  (known: () => Known) =>
  (context: CompletionContext): CompletionResult | null => {
    const { words, schema } = known();
    const sql = sqlAt(context.state, context.pos);
    if (sql) {
      const before = context.state.sliceDoc(sql.from, context.pos);
      return words ? sqlWords(context, words, sql.text, before) : null;
    }
    return schema ? keyWords(context, schema) : null;
  };

/** What a word means: a title and its text, or null. */
function meaning(state: EditorState, from: number, to: number, word: string, { words, schema }: Known): [string, string] | null {
  const sql = sqlAt(state, to);
  if (sql && words) {
    const tables = tablesIn(sql.text, words.tables);
    const known = [...words.parameters, ...words.functions, ...words.row_functions].find(({ name }) => name === word.toLowerCase());
    if (known) return [known.signature, known.doc];
    const isTable = /\b(from|join)\s+$/i.test(state.sliceDoc(sql.from, from));
    const table = isTable
      ? (words.tables.find((each) => bare(each.name) === bare(word)) ??
        words.tables.find((each) => bare(last(each.name)) === bare(word)))
      : undefined;
    if (table) {
      const columns = table.columns.map(({ name, type }) => `${name} ${type}`).join(', ');
      return [`${table.name}: ${table.kind} of ${table.source}`, columns];
    }
    const owner = word.includes('.') ? [...(tables.get(bare(word.slice(0, word.lastIndexOf('.'))))?.columns ?? [])] : undefined;
    const columns = owner ?? [...tables.values()].flatMap((each) => each.columns);
    const column = columns.find(({ name }) => bare(name) === bare(last(word)));
    return column
      ? [`${column.name} ${column.type}`, `${column.values} in rules${column.sent ? '' : '; the publication leaves it out'}`]
      : null;
  }
  const line = state.doc.lineAt(from);
  if (!schema || !/^[\s-]*$/.test(state.sliceDoc(line.from, from)) || state.sliceDoc(to, to + 1) !== ':') return null;
  const text = schemasAt(schema, pathAt(state, from))
    .flatMap(({ properties }) => properties?.[word] ?? [])
    .map((each) => each.description ?? resolve(each, schema)?.description)
    .find((each) => each);
  return text ? [word, text] : null;
}

export const meanings = (known: () => Known) =>
  hoverTooltip((view, position) => {
    const line = view.state.doc.lineAt(position);
    const at = position - line.from;
    const start = /[\w$".]*$/.exec(line.text.slice(0, at))![0].length;
    const end = /^[\w$".]*/.exec(line.text.slice(at))![0].length;
    const [from, to] = [position - start, position + end];
    const found = from < to ? meaning(view.state, from, to, view.state.sliceDoc(from, to), known()) : null;
    if (!found) return null;
    return {
      pos: from,
      end: to,
      create: () => {
        const dom = document.createElement('div');
        dom.className = 'meaning';
        dom.dataset['testid'] = 'meaning';
        for (const [index, text] of found.entries()) {
          const part = document.createElement(index ? 'p' : 'strong');
          part.textContent = text; // names come from the database
          dom.append(part);
        }
        return { dom };
      }
    };
  });
