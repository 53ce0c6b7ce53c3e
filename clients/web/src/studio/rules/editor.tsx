// The editor of a sync config.

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { bracketMatching, foldGutter, foldKeymap, indentOnInput } from '@codemirror/language';
import { forEachDiagnostic, linter, lintGutter, lintKeymap } from '@codemirror/lint';
import { unifiedMergeView } from '@codemirror/merge';
import { highlightSelectionMatches, searchKeymap } from '@codemirror/search';
import { EditorState, type Extension } from '@codemirror/state';
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers } from '@codemirror/view';
import { useEffect, useRef } from 'preact/hooks';
import { diagnostics, type Validated, validate } from './findings';
import { syncConfig } from './language';
import { completion, type Known, meanings } from './words';

const nonce = document.querySelector<HTMLMetaElement>('meta[property=csp-nonce]')?.nonce ?? '';

const look: Extension = [
  nonce ? EditorView.cspNonce.of(nonce) : [],
  EditorView.theme({
    '&': { color: 'var(--text)', backgroundColor: 'var(--raised)', fontSize: '13px' },
    '&.cm-focused': { outline: 'none' },
    '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.55' },
    '.cm-content': { caretColor: 'var(--text)', padding: '6px 0' },
    '.cm-cursor': { borderLeftColor: 'var(--text)' },
    '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground': {
      background: 'var(--selected)'
    },
    '.cm-gutters': { color: 'var(--soft)', backgroundColor: 'var(--raised)', border: 'none' },
    '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--sunken) 70%, transparent)' },
    '.cm-tooltip': { color: 'var(--text)', backgroundColor: 'var(--raised)', border: '1px solid var(--line)', borderRadius: '4px' },
    '.cm-tooltip-autocomplete > ul > li[aria-selected]': { color: 'var(--on-accent)', backgroundColor: 'var(--accent)' },
    '.cm-completionDetail': { fontStyle: 'normal', opacity: '0.75' },
    '.cm-panels': { color: 'var(--text)', backgroundColor: 'var(--sunken)', borderColor: 'var(--line)' },
    '.cm-panel.cm-search input, .cm-panel.cm-search button': { width: 'auto', fontSize: '12px' },
    '.cm-button': { backgroundImage: 'none' },
    '.cm-selectionMatch': { backgroundColor: 'color-mix(in srgb, var(--accent) 18%, transparent)' },
    '.cm-foldPlaceholder': { color: 'var(--soft)', backgroundColor: 'var(--sunken)', border: '1px solid var(--line)' },
    '.cm-collapsedLines': { color: 'var(--soft)', background: 'var(--sunken)' },
    '.cm-changedText, .cm-insertedLine .cm-changedText': { background: 'color-mix(in srgb, var(--good) 20%, transparent)' },
    '.cm-deletedChunk .cm-deletedText': { background: 'color-mix(in srgb, var(--bad) 20%, transparent)' },
    '.cm-insertedLine, .cm-deletedLine': { textDecoration: 'none' },
    '.cm-diagnostic': { fontFamily: 'system-ui, sans-serif' },
    '.cm-diagnosticAction': { color: 'var(--on-accent)', backgroundColor: 'var(--accent)' }
  })
];

/** Make the first certain mend at the cursor's line. */
function mendHere(view: EditorView): boolean {
  const line = view.state.doc.lineAt(view.state.selection.main.head);
  let done = false;
  forEachDiagnostic(view.state, ({ actions }, from, to) => {
    const [action] = actions ?? [];
    if (done || !action || to < line.from || from > line.to) return;
    done = true;
    queueMicrotask(() => action.apply(view, from, to));
  });
  return done;
}

export interface EditorProps {
  /** The text to begin with; give the element another key to begin anew. */
  text: string;
  editable: boolean;
  change: (text: string) => void;
  found: (text: string, result: Validated) => void;
  failed: (error: unknown) => void;
  known: Known;
  view: (view: EditorView | undefined) => void;
}

export function Editor(props: EditorProps) {
  const element = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const check = linter(
      async (view) => {
        const text = view.state.doc.toString();
        try {
          const result = await validate(text);
          if (view.state.doc.toString() === text) latest.current.found(text, result);
          return diagnostics(text, result.findings);
        } catch (error) {
          latest.current.failed(error);
          return [];
        }
      },
      { delay: 300 }
    );
    const view = new EditorView({
      parent: element.current!,
      doc: props.text,
      extensions: [
        lineNumbers(),
        foldGutter(),
        lintGutter(),
        highlightActiveLineGutter(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        autocompletion({ override: [completion(() => latest.current.known)] }),
        highlightActiveLine(),
        highlightSelectionMatches(),
        // Tab leaves the editor, so that nobody is caught in it by the keyboard.
        keymap.of([
          { key: 'Mod-.', run: mendHere },
          ...closeBracketsKeymap,
          ...defaultKeymap,
          ...searchKeymap,
          ...historyKeymap,
          ...foldKeymap,
          ...completionKeymap,
          ...lintKeymap
        ]),
        syncConfig(),
        check,
        meanings(() => latest.current.known),
        look,
        EditorView.lineWrapping,
        EditorState.readOnly.of(!props.editable),
        EditorView.contentAttributes.of({ tabindex: '0', 'aria-label': 'Sync config', 'data-testid': 'editor' }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) latest.current.change(update.state.doc.toString());
        })
      ]
    });
    latest.current.view(view);
    return () => {
      latest.current.view(undefined);
      view.destroy();
    };
  }, []);
  return <div class="editor" ref={element} />;
}

/** What changed from one text to another, line by line. */
export function Difference({ before, after, label }: { before: string; after: string; label: string }) {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const view = new EditorView({
      parent: element.current!,
      doc: after,
      extensions: [
        lineNumbers(),
        syncConfig(),
        look,
        EditorView.lineWrapping,
        EditorState.readOnly.of(true),
        EditorView.contentAttributes.of({ tabindex: '0', 'aria-label': label, 'data-testid': 'difference' }),
        unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged: { margin: 3, minSize: 6 } })
      ]
    });
    return () => view.destroy();
  }, [before, after, label]);
  return before === after ? <p class="none">The same text.</p> : <div class="editor diff" ref={element} />;
}
