// Sync configs: YAML whose queries are SQL. Both are highlighted, and the rest of the editor asks here what is where.

import { SQLDialect } from '@codemirror/lang-sql';
import { yamlLanguage } from '@codemirror/lang-yaml';
import { HighlightStyle, LanguageSupport, syntaxHighlighting, syntaxTree } from '@codemirror/language';
import type { EditorState } from '@codemirror/state';
import { type Input, parseMixed, type SyntaxNode, type SyntaxNodeRef } from '@lezer/common';
import { tags } from '@lezer/highlight';

const TEXTS = new Set(['Literal', 'QuotedLiteral', 'BlockLiteralContent']);
const QUERIES = new Set(['query', 'queries', 'data', 'parameters']);

/** The SQL of rules: other words are names, though a database may reserve them. */
const RULES = SQLDialect.define({
  keywords:
    'select from as join inner left on where and or not in exists between like escape is distinct case when then else end cast array interval with null true false',
  doubleDollarQuotedStrings: false,
  operatorChars: '+-*/%<>=!|&#@?',
  specialVar: ''
});

/** The keys that lead to a node, the innermost first. */
function keysOf(node: SyntaxNode, read: (from: number, to: number) => string): string[] {
  const keys = [];
  for (let at: SyntaxNode | null = node; at; at = at.parent) {
    const key = at.name === 'Pair' ? at.getChild('Key') : null;
    if (key && !(key.from <= node.from && node.to <= key.to)) keys.push(read(key.from, key.to));
  }
  return keys;
}

/** The SQL that a node of YAML contains, without quotes. */
function sqlIn(node: SyntaxNode, read: (from: number, to: number) => string): { from: number; to: number } | null {
  if (!TEXTS.has(node.name) || node.parent?.name === 'Key' || node.parent?.parent?.name === 'Key') return null;
  const quoted = node.name === 'QuotedLiteral' ? 1 : 0;
  const [from, to] = [node.from + quoted, node.to - quoted];
  const keys = keysOf(node, read);
  const isQuery = QUERIES.has(keys[0] ?? '') || keys[1] === 'with' || /^\s*(select|with)\b/i.test(read(from, to));
  return isQuery && to > from ? { from, to } : null;
}

function mixed(node: SyntaxNodeRef, input: Input) {
  if (!TEXTS.has(node.name)) return null;
  const sql = sqlIn(node.node, (from, to) => input.read(from, to));
  return sql && { parser: RULES.language.parser, overlay: [sql] };
}

export interface Sql {
  from: number;
  to: number;
  text: string;
}

/** The query around a position, or null. */
export function sqlAt(state: EditorState, position: number): Sql | null {
  const read = (from: number, to: number) => state.sliceDoc(from, to);
  // A query that is being typed ends before the blanks behind it.
  const typed = position - /\s*$/.exec(read(Math.max(0, position - 200), position))![0].length;
  for (const at of [position, typed]) {
    let node: SyntaxNode | null = syntaxTree(state).resolve(at, -1);
    for (; node; node = node.parent) {
      const sql = sqlIn(node, read);
      if (sql) return { ...sql, text: read(sql.from, sql.to) };
    }
  }
  return null;
}

/** The keys above a line, outermost first, by how far lines are indented: so that it works while a line is typed. */
export function pathAt(state: EditorState, position: number): string[] {
  const here = state.doc.lineAt(position);
  let least = /^[\s-]*/.exec(here.text)![0].length;
  const path: string[] = [];
  for (let number = here.number - 1; number > 0 && least > 0; number--) {
    const found = /^([\s-]*)([^\s#'"][^:#]*|'[^']*'|"[^"]*"):/.exec(state.doc.line(number).text);
    if (!found || found[1]!.length >= least) continue;
    least = found[1]!.length;
    path.unshift(found[2]!.replace(/^['"]|['"]$/g, ''));
  }
  return path;
}

const colours = HighlightStyle.define([
  { tag: [tags.definition(tags.propertyName), tags.propertyName, tags.labelName], color: 'var(--key)' },
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: 'var(--keyword)', fontWeight: '600' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--string)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--literal)' },
  { tag: tags.comment, color: 'var(--soft)', fontStyle: 'italic' },
  { tag: tags.typeName, color: 'var(--text)' },
  { tag: [tags.punctuation, tags.separator, tags.operator], color: 'var(--soft)' }
]);

export const syncConfig = () =>
  new LanguageSupport(yamlLanguage.configure({ wrap: parseMixed(mixed) }), [syntaxHighlighting(colours)]);
