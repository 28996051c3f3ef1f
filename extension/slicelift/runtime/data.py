"""The data of a job: warmed in the shared cache, shown read-only in the workspace, proved again at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slicelift.errors import Refused, SliceliftError
from slicelift.models import DataRef, to_dict
from slicelift.runtime.dataview import View, remove_tree
from slicelift.runtime.folder import AttemptFolder, locked, write_json
from slicelift.runtime.mounts import bind_read_only


def prepare(
    refs: tuple[DataRef, ...],
    cache: Path,
    folder: AttemptFolder,
    *,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Have a true view of every reference in the cache. Starts the warm-up only for what is not there yet.

    `environment` carries the keys of the remotes, if any. Raises SliceliftError with the warm-up's own code, Refused
    "data-not-warm" where the cache is shown to this job read-only, and somebody else was to fill it.
    """
    cold = [ref for ref in refs if not _is_warm(View(cache, ref.md5))]
    if not cold:
        return
    _must_be_ours(cold[0], cache)
    request = folder.root / "warmup.json"
    scratch = folder.root / "scratch" / "warmup"
    write_json(request, {"cache": str(cache), "scratch": str(scratch), "refs": to_dict(cold)})
    command = [sys.executable, "-P", "-m", "slicelift.runtime.warmup", str(request)]
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as child:
        try:
            last = _listen(child, say)
        except BaseException:
            # a cancel interrupts the listening: the fetch ends with it
            child.kill()
            raise
    if not last.get("done"):
        raise _warmup_error(last, child.returncode)


def show(refs: tuple[DataRef, ...], cache: Path, workspace: Path, *, mounts: bool) -> None:
    """Put each view at its path in the workspace: a read-only mount where `mounts` work, else a link.

    Behind a link the files' modes stand in the way of writing, not for root. Raises Refused "data-unsafe".
    """
    for ref in refs:
        content = View(cache, ref.md5).content
        target = _target(workspace, ref)
        if mounts and bind_read_only(content, target):
            continue
        if target.is_dir() and not target.is_symlink():
            remove_tree(target)
        target.unlink(missing_ok=True)
        target.symlink_to(content, target_is_directory=content.is_dir())


def changed(refs: tuple[DataRef, ...], cache: Path) -> list[str]:
    """The files of these data that are no longer what was promoted, by their path in the project.

    Views that were changed are dropped, so that the next job fetches them anew.
    """
    found = []
    for ref in refs:
        view = View(cache, ref.md5)
        paths = view.changed() if view.exists() else ["."]
        if paths:
            found += [ref.path if path == "." else f"{ref.path}/{path}" for path in paths]
            with suppress(OSError), locked(view.lock):
                view.drop(paths)
    return found


def _must_be_ours(ref: DataRef, cache: Path) -> None:
    """On a cluster a gang has its owner's part of the cache read-only."""
    if not cache.exists() or os.access(cache, os.W_OK):
        return
    raise Refused(
        "data-not-warm",
        f"The data {ref.path} was fetched for this job, and is not whole in the shared cache any more.",
        "`slicelift retry` fetches it again.",
    )


def _is_warm(view: View) -> bool:
    return view.exists() and not view.changed()


def _listen(child: subprocess.Popen[bytes], say: Callable[[str], None]) -> dict[str, Any]:
    """Pass the warm-up's messages on; returns its last word."""
    last: dict[str, Any] = {}
    for raw in child.stdout or ():
        try:
            told = json.loads(raw)
        except ValueError:
            # DVC's own chatter
            os.write(2, raw)
            continue
        if isinstance(told, dict):
            last = told
            if "message" in told:
                say(str(told["message"]))
    return last


def _warmup_error(last: dict[str, Any], exit_code: int) -> SliceliftError:
    told = last.get("error")
    if isinstance(told, dict):
        return SliceliftError(str(told["code"]), str(told["message"]), str(told["hint"]))
    return SliceliftError(
        "data-fetch-failed",
        f"The warm-up of the data ended with exit code {exit_code} and no word.",
        "Its output is in the agent's log: `slicelift logs --rank agent`.",
    )


def _target(workspace: Path, ref: DataRef) -> Path:
    target = workspace / ref.path
    # a folder above it may be a link in the snapshot
    inside = target.parent.resolve().is_relative_to(workspace.resolve())
    if not inside or ".." in Path(ref.path).parts:
        raise Refused("data-unsafe", f"The data path {ref.path!r} leaves the project.")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
