"""The warm worker process: `python -m slicelift.server.worker`, JSON lines in and out.

In: `{"id", "call", "arguments"}`. Out: any number of `{"id", "step"}`, then `{"id", "answer"}` or
`{"id", "error": {code, message, hint, detail?}, "status": <HTTP>}`. Every call has a thread of its own. It ends with
its standard input, and with its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import io
import json
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slicelift.errors import SliceliftError, UserError
from slicelift.figures import exact
from slicelift.models import size_text

Say = Callable[[Mapping[str, Any]], None]

_PR_SET_PDEATHSIG = 1
_MOST_MEMORY = 4 * 1024**3
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# what a plan loads on its way, named here so that the first one need not wait 4 s for it; DVC last, as it takes longest
_WANTED_LATER = (
    "slicelift.snapshot",
    "slicelift.snapshot.store",
    "slicelift.launcher_client",
    "slicelift_profiles.presets",
    "httpx",
    "dvc.repo",
    "dvc.repo.data",
    "dvc.scm",
    "dvc.fs",
    "dvc.cachemgr",
    "dvc.data_cloud",
    "dvc.rwlock",
    "dulwich.porcelain",
    "pygit2",
    "ruamel.yaml",
)


def main() -> None:
    """Answer calls until the input ends."""
    _end_with_parent(os.getppid())
    bound_memory(min(_MOST_MEMORY, _machine_memory() // 2))
    calls, answers = _take_pipes()
    # loaded before the first call is read, and only here
    answering = importlib.import_module("slicelift.server.answers")
    threading.Thread(target=_load_the_rest, args=(answering.warm_up,), daemon=True).start()
    for line in calls:
        threading.Thread(
            target=_answer, args=(json.loads(line), answering.CALLS, answers), daemon=True
        ).start()
    answers.close()


def bound_memory(size: int) -> None:
    """No notebook may take the machine: more than `size` bytes is a MemoryError here, and in each child by itself.

    The bound is on what is allocated (RLIMIT_DATA). One on the address space would count what only lies there, too:
    libraries, the arenas of threads, the pack files that git maps.
    """
    if sys.platform == "linux":
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([size, *known]), hard))


def _machine_memory() -> int:
    """Bytes of the machine, or of the container that we are in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # none, or the word `max`
        return whole


class Answers:
    """Writes whole lines, from any thread."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, line: Mapping[str, Any]) -> None:
        """One line. Whatever is in it, it is written: somebody waits for it."""
        text = json.dumps(exact(line), allow_nan=False, default=str)
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """End now: threads in the middle of a call are daemons, and a promotion can be repeated under its id."""
        os._exit(0)


def _answer(call: Mapping[str, Any], known: Mapping[str, Callable[..., Any]], answers: Answers) -> None:
    number = call["id"]

    def say(step: Mapping[str, Any]) -> None:
        answers.write({"id": number, "step": step})

    try:
        answer = known[call["call"]](call["arguments"], say)
        answers.write({"id": number, "answer": answer})
    except BrokenPipeError:
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
        fault = _fault(error)
        answers.write({"id": number, "error": fault.to_dict(), "status": fault.http_status})


def _fault(error: BaseException) -> SliceliftError:
    if isinstance(error, SliceliftError):
        return error
    if isinstance(error, MemoryError):
        size = size_text(resource.getrlimit(resource.RLIMIT_DATA)[0])
        message = f"This notebook takes more memory than the {size} that checking and promoting may use."
        hint = "Read large values from a file instead of writing them into a cell, and clear large outputs."
        return UserError("notebook-too-heavy", message, hint)
    traceback.print_exception(error)
    message = f"Something unexpected happened: {type(error).__name__}: {error}"
    return SliceliftError(
        "internal", message, "Try again, and report it if it stays; the server's log has more."
    )


def _take_pipes() -> tuple[io.TextIOWrapper, Answers]:
    """Our input and output for ourselves: what else is printed goes to stderr, and no child reads our calls."""
    calls, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    stream = os.fdopen(calls, "r", encoding="ascii")
    return stream, Answers(os.fdopen(answers, "w", encoding="ascii"))


def _load_the_rest(warm_up: Callable[[], None]) -> None:
    warm_up()
    for name in _WANTED_LATER:
        try:
            importlib.import_module(name)
        except ImportError:
            # without DVC there is nothing to warm up; the call that needs it says so
            continue


def _end_with_parent(parent: int) -> None:
    """Linux tells us when the server is killed; elsewhere the end of our input does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


if __name__ == "__main__":
    main()
