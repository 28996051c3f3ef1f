"""Runs a rank's script as Python would, and leaves a trace of how it went.

The script gets its own `__main__` (pickling, spawn pools and tracebacks work as without us), the folder it
was started in first on sys.path, and one log for both of its outputs. What it raises ends up in that log, in
`errors/<rank>.json` and in torch's error file.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

from slicelift.runtime import failures, outlet, tracker
from slicelift.runtime.folder import write_json
from slicelift.runtime.world import GANG_RANK, World, start_ticks, world

# a rank that raised and then hangs at its exit (a thread that never ends, a stuck GPU) must not hold the gang
EXIT_SECONDS = 60


def main(arguments: list[str]) -> None:
    """Set the rank up and run the script to its end. Returns or raises as the script does.

    Outside an attempt folder the output stays where it is and no file is written.
    """
    here = world()
    script = str(Path(arguments[0]).absolute())
    if here.attempt_folder:
        os.environ[GANG_RANK] = str(here.rank)
        outlet.redirect(here.attempt_folder / "logs" / f"rank-{here.rank}.log")
        _register(here, here.attempt_folder)
        tracker.isolate(here.rank, here.attempt_folder)
    faulthandler.enable()
    sys.argv = [script, *arguments[1:]]
    # as in a notebook: its folder, not the generated script's, is where modules are looked for first
    sys.path.insert(0, str(Path.cwd()))
    _run(script, here)


def _register(here: World, folder: Path) -> None:
    known = {"rank": here.rank, "pid": os.getpid(), "start_time": start_ticks()}
    # on a full disk training goes on; the agent then knows the rank by its environment alone
    with contextlib.suppress(OSError):
        # what the process before us raised, in a gang that goes on after a lost peer, is not how we end
        (folder / "errors" / f"{here.rank}.json").unlink(missing_ok=True)
        (folder / "ranks").mkdir(exist_ok=True)
        write_json(folder / "ranks" / f"{here.rank}.json", known)


def _run(script: str, here: World) -> None:
    pid = os.getpid()
    try:
        module = _new_main(script)
        exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the job
    except SystemExit as end:
        if end.code not in (None, 0) and os.getpid() == pid:
            failures.record(_trimmed(end), here)
        raise
    except BaseException as error:
        if os.getpid() != pid:  # a child that the script forked: its end is not the rank's
            raise
        _fail(_trimmed(error), here)


def _new_main(script: str) -> types.ModuleType:
    """A fresh `__main__` as Python makes it for a script; ours stays alive under another name."""
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", script)
    module.__dict__.update(__file__=script, __loader__=loader, __builtins__=builtins, __cached__=None)
    sys.modules["slicelift.runtime.__rank__"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    return module


def _trimmed(error: BaseException) -> BaseException:
    """The error without the frames of this module, as the script's author expects it."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == _trimmed.__code__.co_filename:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _fail(error: BaseException, here: World) -> NoReturn:
    failures.record(error, here)
    trace = error.__traceback__
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:  # noqa: BLE001 - a hook of the script's that fails must not hide the error
        sys.__excepthook__(type(error), error, trace)
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True)
    if isinstance(error, KeyboardInterrupt):
        sys.excepthook = _silent
        raise error  # Python itself then ends by the signal
    sys.exit(1)


def _silent(*_: Any) -> None:
    """The traceback is printed already."""
