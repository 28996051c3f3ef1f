"""A notebook looked at without running it: findings, and the file that it becomes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicelift.cli.access import json_option
from slicelift.cli.files import write_file
from slicelift.cli.outcomes import FAILED, FINE
from slicelift.cli.printing import dim, print_json, remark
from slicelift.figures import plural
from slicelift.findings import counted, finding_lines
from slicelift.options import notebook_argument, parameters_option, python_option

if TYPE_CHECKING:
    from slicelift.preflight import Report


@click.command()
@notebook_argument
@python_option
@parameters_option
@json_option
def preflight(notebook: Path, python: str | None, parameters: dict[str, str], as_json: bool) -> int:
    """Check a notebook without running it. Exit status 1 when it is refused."""
    from slicelift.promotion import check

    report = check(notebook, python=python, parameters=parameters)
    if as_json:
        print_json(report.to_dict())
    else:
        print("\n".join(_told(report)))
    return FINE if report.verdict == "ok" else FAILED


@click.command()
@notebook_argument
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead."
)
@python_option
@parameters_option
@json_option
def script(
    notebook: Path, output: Path | None, python: str | None, parameters: dict[str, str], as_json: bool
) -> int:
    """Print the Python file that a notebook becomes, and nothing else.

    With --json the object holds it as `source`. Parameters given with -p become the defaults' overrides only
    when the file runs, so they do not change it; they are checked.
    """
    from slicelift.promotion import accepted, check

    source = accepted(check(notebook, python=python, parameters=parameters))[0].source
    if output is not None:
        write_file(output, [source.encode()])
        remark(f"Wrote {output}.")
    if as_json:
        print_json({"notebook": str(notebook), "source": source})
    elif output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(source.encode())
        sys.stdout.flush()
    return FINE


def _told(report: Report) -> list[str]:
    """Verdict first, then the findings by cell, each with its line of source."""
    from slicelift.promotion import finding_rows

    findings = finding_rows(report)
    name = report.notebook.path.name
    verdict = f"{name} can be promoted" if report.verdict == "ok" else f"{name} cannot be promoted"
    tally = counted(findings)
    head = f"{verdict}: {tally}" if tally else verdict
    code = sum(1 for cell in report.notebook.cells if cell.is_code)
    chosen = f"{len(report.selected_cells)} of {plural(code, 'code cell')} travel{'s' * (code == 1)}"
    given = ", ".join(f"{name} = {value!r}" for name, value in (report.to_dict()["parameters"] or {}).items())
    facts = [chosen, f"parameters {given}" if given else "no parameters"]
    if report.environment:
        facts.append(f"Python {report.environment.python_version}")
    lines = [head, dim(" · ".join(facts))]
    return [*lines, "", *finding_lines(findings)] if findings else lines
