"""The end of a bed, however it was left: nothing of it stays on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

from bed import network, node, processes
from bed.layout import CACHE, Layout

REGISTER = CACHE / "running"


def note(layout: Layout, *, owner: int | None) -> None:
    """Remembers a bed outside its folder. One with an `owner`, a process, is swept away once that has died."""
    REGISTER.mkdir(parents=True, exist_ok=True)
    entry = {"layout": asdict(layout), "owner": owner, "since": _start_time(owner) if owner else ""}
    (REGISTER / f"{layout.name}.json").write_text(json.dumps(entry, default=str))


def sweep() -> list[str]:
    """Takes away every bed whose owner is dead, and returns their folders."""
    gone = []
    for file in REGISTER.glob("*.json"):
        entry = json.loads(file.read_text())
        if entry["owner"] and _start_time(entry["owner"]) != entry["since"]:
            layout = Layout(**entry["layout"] | {"run": Path(entry["layout"]["run"])})
            remove(layout)
            gone.append(str(layout.run))
    return gone


def remove(layout: Layout) -> None:
    """Ends every process, then takes back mounts, link, routes, cgroups and the folder; idempotent, also after kill -9.

    What the node mounted, and its pods, network, rules and bridge, ends with the first process of its namespaces.
    """
    _end_processes(layout.run)
    for place in _mounts_below(layout.run):
        subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
    network.disconnect(layout)
    node.remove_cgroups(layout)
    shutil.rmtree(layout.run, ignore_errors=True)
    (REGISTER / f"{layout.name}.json").unlink(missing_ok=True)


def _end_processes(run: Path) -> None:
    deadline = time.monotonic() + 20
    while pids := processes.marked(run):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of the bed in {run} do not end: {pids}")
        time.sleep(0.05)


def _mounts_below(run: Path) -> list[str]:
    """Deepest first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    places = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    return sorted((one for one in places if Path(one).is_relative_to(run)), key=len, reverse=True)


def _start_time(pid: int) -> str:
    """Of a living process, empty when it is dead: a number may be given again."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if words[0] == "Z" else words[19]
    return ""
