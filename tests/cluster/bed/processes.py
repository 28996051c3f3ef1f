"""The programs of a bed: started apart from whoever starts them, known by a mark in their environment, killed at will."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bed.layout import Layout

MARK = "SLICELIFT_BED"
Report = Callable[[str], None]
# the shell writes its own number and becomes the program
_BECOME = 'echo $$ >"$1.new" && mv "$1.new" "$1" && shift && exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Program:
    """How one program is started. `inside`: in the node's namespaces. `probe`: an address that answers 200 once it is ready."""

    name: str
    command: tuple[str, ...]
    inside: bool = False
    probe: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def start(layout: Layout, program: Program) -> None:
    """Starts it in a session of its own, its output added to logs/<name>.log; returns at once. It must not run yet."""
    if pid_of(layout, program.name):
        raise RuntimeError(f"{program.name} runs already")
    (layout.folder("programs") / f"{program.name}.json").write_text(json.dumps(asdict(program), indent=1))
    mark = _pid_file(layout, program.name)
    mark.unlink(missing_ok=True)
    command = [
        "setsid",
        "--fork",
        "sh",
        "-c",
        _BECOME,
        "sh",
        str(mark),
        *_entering(layout, program),
        *program.command,
    ]
    with log_of(layout, program.name).open("ab") as log:
        subprocess.run(
            command,
            env=_environment(layout) | program.environment,
            cwd=layout.run,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )
    wait_until(f"{program.name} to start", lambda: _begun(layout, program.name), seconds=60)


def start_again(layout: Layout, name: str) -> None:
    """Starts a program of this bed as it was started before."""
    start(layout, known(layout, name))


def known(layout: Layout, name: str) -> Program:
    """How `name` was started; raises `KeyError` with the names there are."""
    file = layout.run / "programs" / f"{name}.json"
    if not file.exists():
        raise KeyError(f"no program {name} in this bed; there are {', '.join(sorted(names(layout)))}")
    values = json.loads(file.read_text())
    return Program(**values | {"command": tuple(values["command"])})


def names(layout: Layout) -> list[str]:
    """Every program that was ever started in this bed, in the order of the first start."""
    files = list((layout.run / "programs").glob("*.json"))
    return [file.stem for file in sorted(files, key=lambda one: one.stat().st_ctime_ns)]


def is_ready(program: Program, layout: Layout) -> bool:
    """Whether its probe answers 200; without a probe, whether it runs."""
    if not program.probe:
        return pid_of(layout, program.name) is not None
    context = ssl.create_default_context(cafile=str(layout.run / "pki" / "ca.crt"))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(program.probe, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def wait_ready(layout: Layout, name: str, *, seconds: float = 180, report: Report | None = None) -> None:
    """Waits until `name` is ready; raises with the end of its log when it ends instead, or not in time."""
    program = known(layout, name)

    def ready() -> bool:
        if pid_of(layout, name) is None:
            raise RuntimeError(f"{name} ended while it started:\n{log_tail(layout, name)}")
        return is_ready(program, layout)

    try:
        wait_until(f"{name} to be ready", ready, seconds=seconds, report=report)
    except TimeoutError as late:
        raise TimeoutError(f"{late}\n{log_tail(layout, name)}") from None


def kill(layout: Layout, name: str, *, how: signal.Signals = signal.SIGKILL, seconds: float = 30) -> bool:
    """Ends a program with a signal and waits until it is gone; False when it did not run. SIGTERM turns into SIGKILL late."""
    if pid_of(layout, name) is None:
        return False
    send(layout, name, how)
    deadline = time.monotonic() + seconds
    while pid_of(layout, name) is not None:
        if time.monotonic() > deadline:
            send(layout, name, signal.SIGKILL)
        time.sleep(0.02)
    return True


def send(layout: Layout, name: str, how: signal.Signals) -> None:
    """A signal for the program itself, such as SIGSTOP."""
    pid = pid_of(layout, name)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def pid_of(layout: Layout, name: str) -> int | None:
    """The number of the running program as this machine counts it, None when it does not run."""
    try:
        outer = int(_pid_file(layout, name).read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not _lives(outer, layout.run):
        return None
    file = layout.run / "programs" / f"{name}.json"
    if not json.loads(file.read_text())["inside"]:
        return outer
    return next(iter(_children(outer)), None)  # nsenter's only child


def marked(run: Path) -> list[int]:
    """Every living process of the bed in `run`, but for what runs in pods."""
    return [pid for pid in _all_pids() if _is_ours(pid, run)]


def init_of_node(layout: Layout) -> int:
    """The first process of the node's namespaces, as this machine counts it."""
    outer = pid_of(layout, "node")
    found = next(iter(_children(outer)), None) if outer else None
    if found is None:
        raise RuntimeError("the node's namespaces are gone: bring the bed down and up again")
    return found


def log_of(layout: Layout, name: str) -> Path:
    """Where the output of a program goes."""
    return layout.folder("logs") / f"{name}.log"


def log_tail(layout: Layout, name: str, *, lines: int = 25) -> str:
    """The end of a program's log."""
    return "\n".join(log_of(layout, name).read_text(errors="replace").splitlines()[-lines:])


def wait_until(what: str, check: Callable[[], bool], *, seconds: float, report: Report | None = None) -> None:
    """Polls `check` until it is true, says so every five seconds, and raises `TimeoutError` that names `what`."""
    start = told = time.monotonic()
    while not check():
        now = time.monotonic()
        if now - start > seconds:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        if report and now - told > 5:
            told = now
            report(f"  waiting for {what}: {now - start:.0f} s")
        time.sleep(0.05)


def _entering(layout: Layout, program: Program) -> list[str]:
    if not program.inside:
        return []
    return ["nsenter", "--target", str(init_of_node(layout)), "--mount", "--net", "--pid", "--"]


def _environment(layout: Layout) -> dict[str, str]:
    """Little, so that a bed is the same whoever starts it."""
    path = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    return {"PATH": path, "HOME": str(layout.run), MARK: str(layout.run), "LANG": "C.UTF-8"}


def _begun(layout: Layout, name: str) -> bool:
    """Running, or over already."""
    mark = _pid_file(layout, name)
    if not mark.exists():
        return False
    return pid_of(layout, name) is not None or not _lives(int(mark.read_text()), layout.run)


def _pid_file(layout: Layout, name: str) -> Path:
    return layout.folder("programs") / f"{name}.pid"


def _is_ours(pid: int, run: Path) -> bool:
    """Alive, no zombie, and marked with this bed: a number that was used again is not."""
    try:
        mark = f"{MARK}={run}".encode()
        return mark in _environ_of(pid).split(b"\0")
    except OSError:
        return False


def _lives(pid: int, run: Path) -> bool:
    """The same for a process that was ours: in the moment in which it becomes another program it shows no environment."""
    for _ in range(100):
        if _is_ours(pid, run):
            return True
        with contextlib.suppress(OSError):  # gone in this very moment
            if _state(pid) in ("", "Z") or _environ_of(pid):
                return False
        time.sleep(0.01)
    return False


def _environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _children(pid: int) -> Iterator[int]:
    for other in _all_pids():
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                yield other


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
