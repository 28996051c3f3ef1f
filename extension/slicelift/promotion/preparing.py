"""The part of a promotion that needs no launcher: check, snapshot, proof, spec."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from slicelift.errors import Refused, UserError
from slicelift.models import Environment, Finding, JobSpec, Script, Severity, Snapshot, size_text, to_dict
from slicelift.notebook.document import read_bytes as read_notebook
from slicelift.notebook.kernel import is_stand_in
from slicelift.promotion.request import (
    Progress,
    Request,
    Step,
    checked_model_name,
    make_model_name,
    silent,
)

if TYPE_CHECKING:
    from slicelift.preflight import Report
    from slicelift.snapshot import DataProof, Project

T = TypeVar("T")
_LONGEST_LINE = 160


@dataclass(frozen=True, kw_only=True)
class Gang:
    """How large, once preset and request are put together."""

    preset: str
    workers: int
    gpus_per_worker: int
    min_workers: int | None = None
    queue: str = "default"


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A request with the notebook's bytes, read once: what is checked is what travels, whatever is saved later."""

    request: Request
    gang: Gang
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All of a promotion that is known before the launcher has heard of it."""

    report: Report
    project: Project
    snapshot: Snapshot
    spec: JobSpec
    proof: DataProof | None


def freeze(request: Request) -> Frozen:
    """What can be told wrong without any work: a preset that does not fit, a notebook that is not there."""
    checked_model_name(request.model_name or make_model_name(request.notebook.stem))
    return Frozen(request=request, gang=_size(request), content=read_notebook(request.notebook))


def prepare(frozen: Frozen, *, on_progress: Progress = silent) -> Prepared:
    """Check the notebook, take the snapshot, prove the data; tells the launcher nothing."""
    from slicelift.snapshot import environment, find_project

    request, gang, content = frozen.request, frozen.gang, frozen.content
    finding = Background(lambda: find_project(request.notebook))
    started = time.perf_counter()
    report = check(request.notebook, python=request.python, parameters=request.parameters, content=content)
    script, kernel = accepted(report)
    if request.python is None and is_stand_in(report.notebook):
        on_progress(Step(name="kernel", text=_stand_in_text(report, kernel)))
    on_progress(Step(name="preflight", text=_checked_text(report), seconds=time.perf_counter() - started))
    environment.check(kernel, workers=gang.workers)
    project = finding.result()
    parts = {"script": script, "environment": kernel, "notebook_bytes": content, "project": project}
    snapshot, proof = _snapshot(request.notebook, parts, say=on_progress)
    spec = _spec(request, gang, report=report, snapshot=snapshot)
    return Prepared(report=report, project=project, snapshot=snapshot, spec=spec, proof=proof)


def check(
    notebook: Path,
    *,
    python: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    content: bytes | None = None,
) -> Report:
    """The preflight of these bytes, or of the file. Raises `notebook-not-found` and what it raises itself."""
    from slicelift import preflight  # pyflakes and IPython's transformer: 0.3 s

    frozen = read_notebook(notebook) if content is None else content
    return preflight.check(notebook, python=python, parameters=parameters, content=frozen)


def accepted(report: Report) -> tuple[Script, Environment]:
    """What a notebook without an error becomes, and the interpreter of its kernel.

    Raises `Refused` (`preflight-refused`) when a finding is an error; all findings go along.
    """
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if not errors and report.script is not None and report.environment is not None:
        return report.script, report.environment
    count = f"{len(errors)} error{'' if len(errors) == 1 else 's'}"
    name = report.notebook.path.name
    raise Refused(
        "preflight-refused",
        f"{name} cannot be promoted: {count}; nothing was sent.",
        f"Mend the cells named and try again; `slicelift preflight {name}` shows all findings.",
        detail={"findings": finding_rows(report)},
    )


def finding_rows(report: Report) -> list[dict[str, Any]]:
    """The findings in plain types, each with its line of the notebook as `source`, "" where there is none.

    No line of a cell that holds a secret is given, and a secret's value nowhere.
    """
    secret = {finding.cell for finding in report.findings if finding.code == "secret-in-source"}
    lines = {
        cell.index: cell.source.split("\n") for cell in report.notebook.cells if cell.index not in secret
    }
    return [
        to_dict(finding) | {"source": _line(finding, lines, report.hidden)} for finding in report.findings
    ]


def _line(finding: Finding, cells: Mapping[int, list[str]], hidden: Iterable[str]) -> str:
    lines = cells.get(-1 if finding.cell is None else finding.cell, [])
    if finding.file or finding.line is None or not 0 < finding.line <= len(lines):
        return ""
    text = lines[finding.line - 1].rstrip()[:_LONGEST_LINE]
    for value in hidden:
        text = text.replace(value, "***")
    return text


def _size(request: Request) -> Gang:
    """What the preset takes where nothing is said; it says whether workers, GPUs and slice go together."""
    from slicelift_profiles import ProfileError, presets

    try:
        preset = presets.load().pick(request.preset, slice=request.slice)
        gang = Gang(
            preset=preset.name,
            workers=preset.workers if request.workers is None else request.workers,
            gpus_per_worker=(
                preset.gpus_per_worker if request.gpus_per_worker is None else request.gpus_per_worker
            ),
            min_workers=preset.min_workers,
            # the queue named default is also what stands there when nobody has asked for one
            queue=(preset.queue or request.queue) if request.queue == "default" else request.queue,
        )
        if gang.min_workers is not None and gang.min_workers >= gang.workers:
            gang = replace(gang, min_workers=None)
        preset.check(workers=gang.workers, gpus_per_worker=gang.gpus_per_worker, slice=request.slice)
    except ProfileError as error:
        raise UserError(error.code, error.message, error.hint) from error
    return gang


def _snapshot(
    notebook: Path, parts: Mapping[str, Any], *, say: Progress
) -> tuple[Snapshot, DataProof | None]:
    """The snapshot, with its data proved meanwhile."""
    from slicelift import snapshot as room

    proofs: list[DataProof] = []
    started = time.perf_counter()
    taken = room.take(notebook, **parts, on_proof=proofs.append)
    say(Step(name="snapshot", text=_snapshot_text(taken), seconds=time.perf_counter() - started))
    proof = proofs[0] if proofs else None
    if taken.data:
        say(Step(name="data", text=_data_text(taken), seconds=proof.seconds if proof else 0.0))
    if proof and proof.secrets:
        names = ", ".join(proof.secrets)
        say(
            Step(
                name="remote-secrets", text=f"Left behind: {names} of the DVC remote; see `slicelift secrets`"
            )
        )
    return taken, proof


def _spec(request: Request, gang: Gang, *, report: Report, snapshot: Snapshot) -> JobSpec:
    _, kernel = accepted(report)
    stem = request.notebook.stem
    return JobSpec(
        name=request.name or stem,
        snapshot_id=snapshot.id,
        notebook=snapshot.notebook,
        script=snapshot.script,
        cwd=snapshot.cwd,
        python=kernel.python,
        workers=gang.workers,
        gpus_per_worker=gang.gpus_per_worker,
        min_workers=gang.min_workers,
        slice=request.slice,
        queue=gang.queue,
        preset=gang.preset,
        parameters=report.overrides,
        data=snapshot.data,
        secrets=tuple(dict.fromkeys(request.secrets)),
        model_name=request.model_name or make_model_name(stem),
        experiment=stem,
        # a session of a cluster: what the notebook ran in is what the job runs in
        image=os.environ.get("SLICELIFT_IMAGE", ""),
    )


class Background(Generic[T]):
    """One call on a daemon thread: an error elsewhere must not have to wait for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Its value, waited for, or what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error


def _checked_text(report: Report) -> str:
    code = sum(1 for cell in report.notebook.cells if cell.is_code)
    others = [f"{finding.severity}" for finding in report.findings]
    tally = ", ".join(
        f"{count} {word}{'' if count == 1 else 's'}"
        for word in ("warning", "note")
        if (count := others.count(word))
    )
    text = f"Checked: {len(report.selected_cells)} of {code} code cells travel"
    if "warning" in others:
        tally += f" (`slicelift preflight {shlex.quote(str(report.notebook.path))}` shows them)"
    return f"{text}; {tally}" if tally else text


def _stand_in_text(report: Report, kernel: Environment) -> str:
    return (
        f"Kernel {report.notebook.kernel} is not installed here: {kernel.python} is used instead "
        "(--python names another)"
    )


def _snapshot_text(snapshot: Snapshot) -> str:
    state = " and uncommitted changes" if snapshot.dirty else ""
    size = size_text(snapshot.size_bytes)
    return (
        f"Snapshot {snapshot.id[:12]}: {len(snapshot.files)} files, {size}, {snapshot.base_commit[:7]}{state}"
    )


def _data_text(snapshot: Snapshot) -> str:
    files = sum(ref.nfiles for ref in snapshot.data)
    first = snapshot.data[0]
    more = f" and {len(snapshot.data) - 1} more" if len(snapshot.data) > 1 else ""
    return f"Data: {first.path} at {first.md5[:8]}{more}, {files} files, all in the remote"
