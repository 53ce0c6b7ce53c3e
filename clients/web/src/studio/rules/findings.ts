// What is wrong with the text: asked of the service as it is typed, underlined, and mended where the mend is certain.

import type { Diagnostic } from '@codemirror/lint';
import type { EditorView } from '@codemirror/view';
import { post } from '../api';

interface Place {
  start: number;
  end: number;
  line: number;
  column: number;
}

interface Edit {
  start: number;
  end: number;
  replacement: string;
}

export interface Finding {
  code: string;
  severity: string;
  message: string;
  suggestion: string | null;
  place: Place | null;
  edit: Edit | null;
}

export interface Validated {
  valid: boolean;
  findings: Finding[];
  schema: boolean;
  note: string;
}

export const validate = (content: string, signal?: AbortSignal): Promise<Validated> =>
  post<Validated>('validate', { content }, signal);

const WIDE = /[\ud800-\udbff][\udc00-\udfff]/g;

/** Places count characters, and the editor counts UTF-16 units. */
export function unitsOf(text: string): (characters: number) => number {
  const wide = [...text.matchAll(WIDE)].map(({ index }, before) => index - before);
  return (characters) => {
    let [low, high] = [0, wide.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (wide[middle]! < characters) low = middle + 1;
      else high = middle;
    }
    return Math.min(characters + low, text.length);
  };
}

export const isFatal = ({ severity }: Finding): boolean => severity === 'fatal';

/** The edit that is certain, or else the name that may have been meant: the person decides. */
export function mendOf({ edit, place, suggestion }: Finding): Edit | undefined {
  if (edit) return edit;
  const meant = /^did you mean `([^`]+)`\?$/.exec(suggestion ?? '')?.[1];
  return meant && place ? { start: place.start, end: place.end, replacement: meant } : undefined;
}

/** Make an edit, which has to be one for the present text. */
export function mend(view: EditorView, edit: Edit): void {
  const at = unitsOf(view.state.doc.toString());
  view.dispatch({ changes: { from: at(edit.start), to: at(edit.end), insert: edit.replacement }, userEvent: 'input.fix' });
  view.focus();
}

export const mendLabel = (edit: Edit): string =>
  edit.replacement.trim() ? `Write ${edit.replacement.trim().slice(0, 60)}` : 'Take it out';

export function reveal(view: EditorView, { place }: Finding): void {
  if (place) {
    const at = unitsOf(view.state.doc.toString());
    view.dispatch({ selection: { anchor: at(place.start), head: at(place.end) }, scrollIntoView: true });
  }
  view.focus();
}

export function diagnostics(text: string, findings: readonly Finding[]): Diagnostic[] {
  const at = unitsOf(text);
  return findings.map((finding) => {
    const edit = mendOf(finding);
    const from = at(finding.place?.start ?? 0);
    const to = Math.max(at(finding.place?.end ?? 0), Math.min(from + 1, text.length));
    return {
      from,
      to,
      severity: isFatal(finding) ? 'error' : 'warning',
      source: finding.code,
      message: finding.suggestion ? `${finding.message}; ${finding.suggestion}` : finding.message,
      ...(edit ? { actions: [{ name: mendLabel(edit), apply: (view: EditorView) => mend(view, edit) }] } : {})
    };
  });
}
