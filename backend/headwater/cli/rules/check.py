"""`headwater rules check`, `explain` and `schema`: what is wrong with sync configs, what one does, the schema that an
app declares for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from headwater.cli.options import to_json
from headwater.cli.rules.sync_config import compile_rules, missing_note, read_text
from headwater.insight.words import count
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_schema import client_schema, schema_code
from headwater_rules.describe.explain import explain, explanation_lines
from headwater_rules.errors import RuleCode, RuleError, Severity, SyncConfigError, span_in
from headwater_rules.plan import SyncPlan
from headwater_rules.schema import Language, SeenSchema, SourceSchema


@dataclass(frozen=True, slots=True)
class Checked:
    """One file and its findings; `plan` is None when it can't be deployed."""

    file: str
    plan: SyncPlan | None
    findings: tuple[RuleError, ...]

    def having(self, severity: Severity) -> list[RuleError]:
        return [finding for finding in self.findings if finding.severity is severity]


Describe = Callable[[SourceSchema, str], SourceSchema]


def check_files(
    files: Sequence[Path],
    seen: SeenSchema,
    *,
    form: str,
    allow_missing: bool = False,
    warnings_as_errors: bool = False,
    describe: Describe = lambda schema, _: schema,
) -> int:
    """Print the findings in the files as text, json or github, and what they were compared with. `describe` asks the
    sources for the computed tables of a text. Returns the exit code."""
    checked = [_check(file, seen.schema, describe, allow_missing=allow_missing) for file in files]
    if warnings_as_errors:
        checked = [replace(each, findings=tuple(map(_as_error, each.findings))) for each in checked]
    match form:
        case "json":
            click.echo(to_json({**_as_dict(checked), "schema": seen.schema is not None, "note": seen.note}))
        case "github":
            for each in checked:
                for finding in each.findings:
                    click.echo(_annotation(each.file, finding))
        case _:
            _show(checked)
    if form != "json":
        click.echo(f"note: {seen.note}", err=True)
        for note in missing_note(finding for each in checked for finding in each.findings):
            click.echo(f"note: {note}", err=True)
    return 1 if any(each.having(Severity.FATAL) for each in checked) else 0


def _as_error(finding: RuleError) -> RuleError:
    """A finding with its severity raised, except advice, which may need no action."""
    return finding if finding.code in {RuleCode.BUCKET_PER_ROW, RuleCode.SAME_IDS} else finding.as_fatal()


def _check(file: Path, schema: SourceSchema | None, describe: Describe, *, allow_missing: bool) -> Checked:
    text = read_text(file)
    name = "stdin" if str(file) == "-" else str(file)
    if schema is not None:
        schema = describe(schema, text)
    try:
        compiled = compile_config(text, schema=schema, allow_missing=allow_missing, advise=True)
    except SyncConfigError as errors:
        return Checked(name, None, errors.findings)
    return Checked(name, compiled.plan, compiled.warnings)


def _show(checked: Iterable[Checked]) -> None:
    for each in checked:
        if each.findings:
            rendered = "\n\n".join(finding.render() for finding in each.findings)
            click.echo(f"{each.file}:\n{rendered}", err=True)
        if each.plan is not None and not each.having(Severity.FATAL):
            plan = each.plan
            made = {"stream": plan.streams, "bucket definition": plan.buckets, "lookup": plan.lookups}
            counts = ", ".join(count(len(things), noun) for noun, things in made.items())
            click.echo(f"{each.file}: ok, {counts}")


def _as_dict(checked: Sequence[Checked]) -> dict[str, object]:
    found = {
        severity: [{"file": each.file, **finding.to_dict()} for each in checked for finding in each.having(severity)]
        for severity in Severity
    }
    code = SyncConfigError.code if found[Severity.FATAL] else None
    return {"code": code, "errors": found[Severity.FATAL], "warnings": found[Severity.WARNING]}


def _annotation(file: str, finding: RuleError) -> str:
    """A workflow command of GitHub that shows the finding at its line of a pull request."""
    kind = "error" if finding.severity is Severity.FATAL else "warning"
    place = finding.span or span_in("", 0, 0)
    where = f"line={place.line},col={place.column},endLine={place.end_line},endColumn={place.end_column}"
    text = f"{finding.message}; {finding.suggestion}" if finding.suggestion else finding.message
    return f"::{kind} file={_escaped(file, ',:')},{where},title={finding.code.value}::{_escaped(text)}"


def _escaped(text: str, also: str = "") -> str:
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


_WIDTH = 100


def show_explanation(file: Path, *, as_json: bool) -> None:
    """Print an explanation of a sync config. Raises WrongRulesError."""
    explanation = explain(compile_rules(read_text(file), str(file), as_json=as_json).plan)
    if as_json:
        click.echo(to_json(asdict(explanation)))
        return
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    for line in explanation_lines(explanation, width):
        click.echo(line)


def show_client_schema(file: Path, schema: SourceSchema | None, language: Language) -> None:
    """Print the schema in a language. Raises WrongRulesError."""
    plan = compile_rules(read_text(file), str(file)).plan
    click.echo(schema_code(client_schema(plan, schema), language), nl=False)
