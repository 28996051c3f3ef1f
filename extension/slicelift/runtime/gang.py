"""The ranks of one node: `python -P -m slicelift.runtime.gang --nproc N [--nodes ...] SCRIPT [ARGUMENT...]`.

Runs in the kernel's interpreter, in the folder the ranks are to work in, with SLICELIFT_ATTEMPT_DIR set. The
outcome is written to gang.json by rename: `{exit_code, failures: [{rank, exit_code, exception, message, time,
echo, error}]}`, the first trigger first, with a `reason` where no rank was at fault. One failed rank ends all ranks of
the node, and with them the gang; only an elastic one starts them again a few times. The options are `nodes.Place`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from slicelift.runtime import checking
from slicelift.runtime.deaths import Deaths
from slicelift.runtime.failures import Exit, collect
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.nodes import Place
from slicelift.runtime.world import world

RANK = Path(__file__).resolve().with_name("rank.py")
# how long a rank may take to end after SIGTERM before it is killed; torch's own default is 30
SHUTDOWN_SECONDS = 10

_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
}
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}


class Interrupted(Exception):
    """The gang was told to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gang to its end and write gang.json. Returns the exit code for the shell (128 + n for a signal)."""
    options = _parser().parse_args(arguments)
    folder = world().attempt_folder
    if folder is None:
        sys.stderr.write("gang: SLICELIFT_ATTEMPT_DIR is not set; the agent sets it.\n")
        return 2
    place = Place(**{field.name: getattr(options, field.name) for field in fields(Place)})
    for name, value in (_DEFAULTS | (_LOOPBACK if place.alone else {})).items():
        os.environ.setdefault(name, value)
    run = _run_one if place.alone and place.nproc == 1 else _run_many
    result = run(folder, place, [options.script, *options.arguments])
    AttemptFolder(folder).write_last(folder / "gang.json", result)
    code = int(result["exit_code"])
    return code if code >= 0 else 128 - code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -P -m slicelift.runtime.gang", description=__doc__)
    for field in fields(Place):
        kind = int if isinstance(field.default, int) else str
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _run_one(folder: Path, _: Place, command: list[str]) -> dict[str, Any]:
    """A world of one needs no torch; MASTER_ADDR and MASTER_PORT are there for those who use it all the same."""
    places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    environment = {**os.environ, **places, **address}
    # an error file of an outer torchrun is not ours to write
    environment.pop("TORCHELASTIC_ERROR_FILE", None)
    start = [sys.executable, "-u", str(RANK), *command]
    try:
        code = _run_child(start, environment)
    except Interrupted as request:
        return {"exit_code": -request.number, "failures": []}
    return _result(folder, [Exit(rank=0, exit_code=code, time=time.time())])


def _run_child(command: list[str], environment: dict[str, str]) -> int:
    """Its exit code. Raises Interrupted on a signal, once the child has ended."""
    with _signals_raise():
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            return process.wait()
        except Interrupted as request:
            _end(process, request.number)
            raise


def _run_many(folder: Path, place: Place, command: list[str]) -> dict[str, Any]:
    try:
        refused = checking.check(folder, place, environment=os.environ, run=_run_child)
    except Interrupted as request:
        return {"exit_code": -request.number, "failures": []}
    if refused is not None:
        return {"exit_code": 1, "failures": [refused]}
    deaths = Deaths(folder, place.nproc, again=place.elastic)
    deaths.start()
    try:
        return _result(folder, _torchrun(folder, place, command, deaths))
    except Interrupted as request:
        return {"exit_code": -request.number, "failures": []}
    except Exception as error:  # noqa: BLE001 - whatever keeps torchrun from starting ranks goes to the user
        return {"exit_code": 1, "failures": [_no_gang(error)]}
    finally:
        deaths.stop()


def _torchrun(folder: Path, place: Place, command: list[str], deaths: Deaths) -> list[Exit]:
    """The ends of the failed ranks. Raises ImportError where torch is missing, Interrupted on a signal."""
    # torch is the user's and takes seconds to load
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(_torchrun_arguments(folder, place, command)))
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in failed.failures.items()}
        return deaths.exits(codes)
    except SignalException as request:
        raise Interrupted(int(request.sigval)) from request
    return []


def _torchrun_arguments(folder: Path, place: Place, command: list[str]) -> list[str]:
    return [
        *place.torchrun_options(),
        f"--nproc-per-node={place.nproc}",
        "--monitor-interval=0.1",
        f"--log-dir={folder / 'scratch' / 'torchrun'}",
        "--no-python",
        sys.executable,
        "-u",
        str(RANK),
        *command,
    ]


def _result(folder: Path, exits: list[Exit]) -> dict[str, Any]:
    failures = collect(folder, exits)
    return {"exit_code": failures[0]["exit_code"] if failures else 0, "failures": failures}


def _no_gang(error: Exception) -> dict[str, Any]:
    message = str(error)
    if isinstance(error, ImportError):
        message = (
            f"A gang of several workers needs torch, and {sys.executable} cannot import it: {error}. "
            "Install torch into the kernel's environment, or run with one worker."
        )
    return {
        "rank": None,
        "exit_code": 1,
        "exception": type(error).__name__,
        "message": message,
        "time": time.time(),
        "echo": not isinstance(error, ImportError),
        "error": None,
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Inside, SIGTERM, SIGINT and SIGHUP raise Interrupted, once."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def interrupt(number: int, _: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        process.wait(SHUTDOWN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
