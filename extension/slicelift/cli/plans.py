"""A dry run for reading and as JSON: what travels, what starts, what is not known yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slicelift.cli.printing import dim
from slicelift.figures import plural
from slicelift.models import SnapshotFile, size_text, to_dict
from slicelift.promotion import Plan

_TOP = 5


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything of the plan in plain types. `upload` is null when no launcher could be asked."""
    snapshot, proof = plan.prepared.snapshot, plan.prepared.proof
    return {
        "notebook": snapshot.notebook,
        "snapshot": {
            "id": snapshot.id,
            "commit": snapshot.commit,
            "base_commit": snapshot.base_commit,
            "branch": snapshot.branch,
            "dirty": snapshot.dirty,
            "files": len(snapshot.files),
            "bytes": snapshot.size_bytes,
            "largest": [to_dict(item) for item in largest(snapshot.files)],
        },
        "upload": None if plan.missing is None else _counted(plan.missing),
        "data": [to_dict(ref) for ref in snapshot.data],
        "proof": to_dict(proof) if proof else None,
        "findings": [to_dict(finding) for finding in plan.prepared.report.findings],
        "spec": to_dict(plan.prepared.spec),
        "manifest": plan.manifest,
        "position": plan.position,
        "capacity": plan.capacity,
        "notes": list(plan.notes),
    }


def plan_lines(plan: Plan) -> list[str]:
    """The plan for a reader, manifest last."""
    return [*_travels(plan), "", *_starts(plan), *_manifest(plan), *(dim(note) for note in plan.notes)]


def largest(files: Iterable[SnapshotFile]) -> list[SnapshotFile]:
    """The few files that make a snapshot heavy."""
    return sorted(files, key=lambda item: -item.size_bytes)[:_TOP]


def _counted(files: Iterable[SnapshotFile]) -> dict[str, int]:
    """Each content counts once, as it is sent once."""
    sizes = {item.sha256: item.size_bytes for item in files}
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _travels(plan: Plan) -> list[str]:
    snapshot = plan.prepared.snapshot
    state = " with uncommitted changes" if snapshot.dirty else ""
    code = f"{snapshot.branch or 'detached'} @ {snapshot.base_commit[:7]}{state}"
    lines = [
        f"Travels    {plural(len(snapshot.files), 'file')}, {size_text(snapshot.size_bytes)}; {_upload(plan)}",
        f"  code     {code}, snapshot {snapshot.id[:12]}",
    ]
    shown = largest(snapshot.files)
    lines += [f"           {size_text(item.size_bytes):>8}  {item.path}" for item in shown]
    if len(shown) < len(snapshot.files):
        lines.append(f"           and {len(snapshot.files) - len(shown)} more")
    for ref in snapshot.data:
        where = f"{ref.md5}, {plural(ref.nfiles, 'file')}, {size_text(ref.size_bytes)}"
        lines.append(f"  data     {ref.path}: {where}, all in remote {ref.remote}")
    return lines if snapshot.data else [*lines, "  data     none tracked by DVC"]


def _upload(plan: Plan) -> str:
    if plan.missing is None:
        return "how much is new is not known"
    count = _counted(plan.missing)
    if not count["files"]:
        return "nothing to upload"
    return f"{plural(count['files'], 'file')} to upload, {size_text(count['bytes'])}"


def _starts(plan: Plan) -> list[str]:
    spec = plan.prepared.spec
    gpus = f" × {spec.gpus_per_worker} GPU" if spec.gpus_per_worker else ""
    on_slice = f" on slice {spec.slice}" if spec.slice else ""
    lines = [
        f"Starts     {plural(spec.workers, 'worker')}{gpus}{on_slice}, preset {spec.preset}{_when(plan)}"
    ]
    lines.append(f"  python   {spec.python}")
    lines += [f"  -p       {name} = {value!r}" for name, value in spec.parameters.items()]
    lines += [f"  secret   {name}" for name in spec.secrets]
    return [*lines, f"  model    {spec.model_name}", f"  cwd      {spec.cwd}"]


def _when(plan: Plan) -> str:
    if plan.position is None:
        return ""
    ahead = plan.position - 1
    return "; starts now" if ahead <= 0 else f"; {plural(ahead, 'job')} ahead in queue"


def _manifest(plan: Plan) -> list[str]:
    if plan.manifest is None:
        return []
    import yaml  # 20 ms, needed for this text only

    text = yaml.safe_dump(dict(plan.manifest), sort_keys=False, allow_unicode=True, width=100)
    return ["", "Manifest", *(f"  {line}" for line in text.splitlines())]
