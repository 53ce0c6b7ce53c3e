"""Writes docs/errors.md from the code: every code that an error, a warning or a finding can carry, and what it means.

An exception's meaning is its docstring, that of a code of the sync rules the text below its name, that of a finding
or a log line its words, with … for what they name. `python -m docs.generate.errors` writes the page.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import HeadwaterError, Kind

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"

_CODE = re.compile(r"(?:HW|PSYNC)_[A-Z]?\d{3,4}")
_DONE = {
    Kind.RETRY: "Headwater tries again",
    Kind.STOP: "you",
    Kind.RESYNC: "Headwater compares with the source",
    Kind.REJECT: "whoever sent it",
}
_GROUPS = (
    ("HW_1", "The machine"),
    ("HW_2", "Source and stream"),
    ("HW_3", "Rows and their ids"),
    ("HW_4", "Store and embedded servers"),
    ("HW_5", "Bulk work and audit"),
    ("HW_6", "Endpoint"),
    ("HW_7", "Config and processes"),
    ("HW_8", "Commands and the demo"),
    ("HW_R", "Sync rules"),
    ("PSYNC_", "Codes that PowerSync publishes, with their meaning there"),
)
_COLUMNS = ("| code | what it means | who acts |", "|---|---|---|")
_HEAD = """# Error codes

<!-- Written by `make reference` from the code. -->

Every error says what happened, where, and what to do, and carries one of these codes: in the log, in what a command
prints, and in the answer to a device. Codes stay; words may change. … stands for what a message names.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one code means, and who acts on it."""

    code: str
    meaning: str
    done: str = ""


def entries() -> list[Entry]:
    """All codes in the code, each with all that it stands for. Raises ValueError for one that nothing explains."""
    found: dict[str, list[Entry]] = {}
    for root, package in ((ROOT / "backend", "headwater"), (ROOT / "sync_rules", "headwater_rules")):
        for path in sorted((root / package).rglob("*.py")):
            for entry in _of_module(path, ".".join(path.relative_to(root).with_suffix("").parts)):
                found.setdefault(entry.code, []).append(entry)
    unexplained = sorted(code for code, several in found.items() if not any(entry.meaning for entry in several))
    if unexplained:
        raise ValueError(f"nothing says what these mean: {', '.join(unexplained)}")
    return [_joined(several) for _, several in sorted(found.items())]


def page() -> str:
    """The whole page."""
    every = entries()
    homeless = [e.code for e in every if not e.code.startswith(tuple(prefix for prefix, _ in _GROUPS))]
    if homeless:
        raise ValueError(f"no group is for these: {', '.join(homeless)}")
    parts = [_HEAD]
    for prefix, title in _GROUPS:
        rows = [f"| `{e.code}` | {e.meaning} | {e.done} |" for e in every if e.code.startswith(prefix)]
        if rows:
            parts.append("\n".join([f"## {title}\n", *_COLUMNS, *rows]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _joined(several: list[Entry]) -> Entry:
    meanings = dict.fromkeys(entry.meaning for entry in several if entry.meaning)
    done = dict.fromkeys(entry.done for entry in several if entry.done)
    return Entry(several[0].code, "<br>".join(meanings), "; ".join(done))


def _of_module(path: Path, module: str) -> Iterator[Entry]:
    tree = ast.parse(path.read_text("utf-8"))
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        code = _CODE.search(node.value)
        above = parents[node]
        if code is None or isinstance(above, (ast.Expr, ast.Compare, ast.Set, ast.arguments)):
            continue  # prose, a question about a code, or a default
        if code.group() == HeadwaterError.code:
            continue  # nothing is raised with it
        yield _entry(code.group(), node, parents, module)


def _entry(code: str, node: ast.Constant, parents: dict[ast.AST, ast.AST], module: str) -> Entry:
    above = parents[node]
    if isinstance(above, ast.Tuple):
        above = parents[above]
    if isinstance(above, (ast.Assign, ast.AnnAssign)):
        holder = parents[above]
        if isinstance(holder, ast.ClassDef) and _target(above) == "code":
            error = getattr(importlib.import_module(module), holder.name)
            done = _DONE[error.kind] if issubclass(error, HeadwaterError) else ""
            return Entry(code, _first_paragraph(ast.get_docstring(holder) or ""), done)
        return Entry(code, _text_below(above, holder))
    if isinstance(above, ast.JoinedStr):
        return Entry(code, _message(above, {}))
    call = next((each for each in _ancestors(node, parents) if isinstance(each, ast.Call)), None)
    if call is None:
        return Entry(code, "")
    function = next(each for each in _ancestors(call, parents) if isinstance(each, ast.FunctionDef))
    names = _assigned(function, call.lineno)
    texts = [_message(argument, names) for argument in [*call.args, *(k.value for k in call.keywords)]]
    meaning = "; ".join(dict.fromkeys(text for text in texts if " " in text))
    return Entry(code, meaning, _DONE[Kind.STOP] if "Finding" in ast.unparse(call.func) else "")


def _ancestors(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while node in parents:
        node = parents[node]
        yield node


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _text_below(node: ast.stmt, holder: ast.AST) -> str:
    """The string that follows a statement, which is how a constant is explained."""
    body = getattr(holder, "body", [])
    after = body[body.index(node) + 1 :][:1] if node in body else []
    if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
        return _first_paragraph(str(after[0].value.value))
    return ""


def _assigned(function: ast.FunctionDef, line: int) -> dict[str, ast.expr]:
    """What the names of a function mean at one of its lines, as it is written from top to bottom."""
    made = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and node.lineno < line]
    targets = {node.lineno: (node.targets[0], node.value) for node in made}
    pairs = [targets[at] for at in sorted(targets)]
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name)}


def _message(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """The words of an expression, with … for what is known only when it happens."""
    match node:
        case ast.Constant(value=str(text)):
            return _plain(re.sub(r"%[sdr.0-9f]+", "…", text))
        case ast.JoinedStr(values=values):
            return _plain("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in values))
        case ast.Name(id=name) if name in names:
            return _message(names[name], {})
        case ast.IfExp(body=body, orelse=orelse):
            return " / ".join(dict.fromkeys([_message(body, names), _message(orelse, names)]))
        case _:
            return ""


def _plain(text: str) -> str:
    return re.sub(r"(…\W?)+…", "…", _CODE.sub("", text).replace("[]", "").strip()).replace("|", "\\|")


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
