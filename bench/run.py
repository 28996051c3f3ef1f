"""Measures the figures of docs/benchmarks.md on this machine, prints them and writes bench/results.json.

    python -m bench [--only NAME]... [--list] [--docs]

Each benchmark runs in a process of its own with an empty home, on real parts: launcher, git, DVC, MLflow,
torch. A figure is compared within one run, never with a number of another machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file: its folder is on the path instead, and would shadow modules
    sys.path[0] = str(ROOT)

from bench.figures import RESULTS, Figure, keep, markdown  # noqa: E402

# name of the module -> what it measures; in the order they run
BENCHMARKS = {
    "preflight": "preflight of 400 cells",
    "series": "the launcher's answer of 300 points from a series of a million",
    "watcher": "from the log call to a watcher",
    "promote": "promote() to job accepted, 1,000 files with DVC data: cold, unchanged, without the data proof",
    "log_share": "share of step time inside log(), beside mlflow.log_metric",
    "end_to_end": "the same training with and without logging",
    "javascript": "how much JavaScript JupyterLab loads",
    "card": "from the log call to the pixel, and a card's first paint",
    "spawn": "from the click on Start to a usable JupyterLab, through the hub",
    "gangs": "gangs on a cluster against bare Volcano Jobs: submit to running, hundreds at once, how late the status is",
    "data": "bytes that leave a DVC remote for a gang of four pods on a test cluster",
    "deadlock": "ten gangs of eight on forty GPUs: default scheduler, bare Volcano, ours (on a test cluster)",
    "up": "`slicelift up`, warm, to the first metric",
}

ON_A_CLUSTER = ("gangs", "data", "deadlock")
BED = ROOT / "tests" / "cluster" / "bed"

DOCS = ROOT / "docs" / "benchmarks.md"
LIMIT_SECONDS = 900
END_SECONDS = 120
BUSY = 1.0


def main(arguments: list[str]) -> int:
    """Exit status 1 when a benchmark could not be run; a missed goal is a figure, not a failure."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    if options.one:
        return _one(options.one, Path(options.into))
    if options.list:
        print("\n".join(f"{name:<12} {what}" for name, what in BENCHMARKS.items()))
        return 0
    if options.docs:
        return _write_docs()
    load = _load()
    failed = [name for name in options.only or BENCHMARKS if not _measure(name, load)]
    _print_table(json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else [])
    if failed:
        print(f"\nnot measured: {', '.join(failed)}")
    return int(bool(failed))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="measure this one (may repeat)"
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument(
        "--docs", action="store_true", help=f"put the kept figures into {DOCS.relative_to(ROOT)}"
    )
    parser.add_argument("--one", choices=list(BENCHMARKS), help=argparse.SUPPRESS)
    parser.add_argument("--into", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _write_docs() -> int:
    """Put the table of the kept figures in the place of the page's last section."""
    page, kept = DOCS.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8"))
    head, heading, _ = page.partition("## Figures\n")
    DOCS.write_text(f"{head}{heading}\n{markdown(kept)}\n", encoding="utf-8")
    return 0


def _load() -> float:
    """The load average before anything of ours ran."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"the machine is busy (load {load:.1f}): times will not be the program's own", flush=True)
    return load


def _measure(name: str, load: float) -> bool:
    """Run one benchmark in its own process and home; keep its figures. False when it failed."""
    if name in ON_A_CLUSTER:
        # minutes the first time, which are not the benchmark's
        subprocess.run([sys.executable, str(BED), "build"], cwd=ROOT, check=True)
    print(f"— {name}: {BENCHMARKS[name]}", flush=True)
    start, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="slicelift-bench-"))
    try:
        code = _run(name, place)
        written = place / "figures.json"
        rows = json.loads(written.read_text(encoding="utf-8")) if code == 0 else []
        command = f".venv/bin/python -m bench --only {name}"
        keep([_revive(row) for row in rows], command=command, load=load)
    finally:
        _stop_launcher(place / "home")
        shutil.rmtree(place, ignore_errors=True)
    print(
        f"  {'done' if code == 0 else f'failed (exit {code})'} in {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return code == 0


def _run(name: str, place: Path) -> int:
    command = [sys.executable, "-m", "bench", "--one", name, "--into", str(place / "figures.json")]
    child = subprocess.Popen(command, cwd=ROOT, env=_environment(place), start_new_session=True)
    try:
        return child.wait(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"  no end within {LIMIT_SECONDS} s", flush=True)
        return 124
    finally:
        _end(child)  # too slow, or we are told to stop


def _end(child: subprocess.Popen[bytes]) -> None:
    """It ends what it started first: a hub and its sessions are in process groups of their own."""
    child.terminate()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _environment(place: Path) -> dict[str, str]:
    """An empty home; nothing of the user's MLflow, git or Python settings."""
    dropped = ("MLFLOW_TRACKING_URI", "PYTHONPATH", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    user = place / "user"
    user.mkdir()
    return kept | {
        "HOME": str(user),
        "SLICELIFT_HOME": str(place / "home"),
        "DVC_NO_ANALYTICS": "1",
        "OMP_NUM_THREADS": "1",
        "SLICELIFT_CLUSTER_CACHE": str(_cluster_cache()),
    }


def _cluster_cache() -> Path:
    """Where the test bed's programs are built, of which there need not be one for every home."""
    sys.path.append(str(BED.parent))
    from bed.layout import CACHE

    return CACHE


def _one(name: str, into: Path) -> int:
    """The child: measure and hand the figures over."""
    module = importlib.import_module(f"bench.{name}")
    figures: list[Figure] = module.run(into.parent)
    into.write_text(json.dumps([item.to_dict() for item in figures]), encoding="utf-8")
    return 0


def _revive(row: dict[str, Any]) -> Figure:
    known = {key: value for key, value in row.items() if key != "met"}
    return Figure(**known | {"interval": tuple(known["interval"]) if known["interval"] else None})


def _stop_launcher(home: Path) -> None:
    """End the launcher that this benchmark started, and with it its jobs and its MLflow server."""
    try:
        pid = json.loads((home / "launcher.json").read_text(encoding="utf-8"))["pid"]
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError, KeyError):
        return
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)


def _print_table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'figure':<28} {'value':>12} {'95 % interval':>24} {'goal':>10}  met")
    for row in rows:
        low, high = row["interval"] or (row["value"], row["value"])
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        met = {True: "yes", False: "NO", None: ""}[row["met"]]
        value = f"{row['value']:g} {row['unit']}"
        print(f"{row['id']:<28} {value:>12} {f'{low:g} to {high:g}':>24} {goal:>10}  {met}")
    print(f"\nwritten to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
