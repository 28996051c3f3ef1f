"""The one warm worker process, seen from the server: calls by number, steps on the way, started anew when it dies."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slicelift.errors import SliceliftError, Unavailable
from slicelift.server.launcher import without_address

# an answer is one line: a plan holds the whole script
_LINE_BYTES = 256 * 1024**2
_HEALTHY_SECONDS = 10.0
_END_SECONDS = 2.0
# how code that cannot allocate ends, or is ended by the system
_STARVED = (signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL)

OnStep = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class _Call:
    answer: asyncio.Future[Any]
    on_step: OnStep


class Workers:
    """Runs calls in the worker, any number at once. There is one process, or none while nobody needed it."""

    def __init__(self, *, root: str, log: Any = None) -> None:
        self._root = root
        self._log = log or logging.getLogger(__name__)
        self._worker: _Worker | None = None
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return self._worker.process.pid if self._worker else None

    async def warm(self) -> None:
        """Have the process there before somebody needs it."""
        try:
            await self._running()
        except SliceliftError as error:
            self._log.warning("%s %s", error.message, error.hint)

    async def call(self, name: str, arguments: Mapping[str, Any], *, on_step: OnStep = lambda _: None) -> Any:
        """The answer of one call; `on_step` gets what it tells on the way.

        Raises the call's own error, and `worker-died` when the process ends in the middle: safe to repeat. Who
        stops waiting does not stop the call.
        """
        worker = await self._running()
        return await worker.call(name, arguments, on_step)

    async def close(self) -> None:
        """End the process and do not start another."""
        self._closed = True
        if self._worker is not None:
            await self._worker.end()
        for task in list(self._tasks):
            with suppress(Exception):
                await task

    async def _running(self) -> _Worker:
        async with self._starting:
            if self._closed:
                raise _died("The server is stopping.")
            if self._worker is None:
                self._worker = _Worker(await _start(self._root), log=self._log)
                self._keep(self._worker.listen(), then=self._ended)
                self._keep(self._worker.pass_on_complaints())
            return self._worker

    def _ended(self) -> None:
        """Start another at once, unless this one did not live long: it would die again."""
        worker, self._worker = self._worker, None
        if worker is None or self._closed:
            return
        lived = time.monotonic() - worker.born
        self._log.warning("The promotion worker ended (%s).", worker.process.returncode)
        if lived > _HEALTHY_SECONDS:
            self._keep(self.warm())

    def _keep(self, work: Any, *, then: Callable[[], None] | None = None) -> None:
        """Run it as a task that is not forgotten before its end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if then is not None:
            task.add_done_callback(lambda _: then())


class _Worker:
    """One process and the calls that are under way in it."""

    def __init__(self, process: Process, *, log: Any) -> None:
        self.process = process
        self.born = time.monotonic()
        self._log = log
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._over = False

    async def call(self, name: str, arguments: Mapping[str, Any], on_step: OnStep) -> Any:
        number = next(self._numbers)
        call = _Call(answer=asyncio.get_running_loop().create_future(), on_step=on_step)
        self._calls[number] = call
        line = json.dumps({"id": number, "call": name, "arguments": arguments}) + "\n"
        try:
            if self._over or self.process.stdin is None:
                raise _died("It had ended already.")
            self.process.stdin.write(line.encode())
            await self.process.stdin.drain()
            return await call.answer
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _died("It ended before it was asked.") from error
        finally:
            self._calls.pop(number, None)

    async def listen(self) -> None:
        """Hand out answers until the process ends; what is under way then fails."""
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self._heard(json.loads(line))
        except (ValueError, LookupError, TypeError) as error:
            # a line beyond all bounds, or none of ours: nothing after it could be trusted
            self._log.error("The promotion worker said something strange: %s", error)
            self._kill()
        finally:
            self._over = True
            code = await self.process.wait()
            for call in self._calls.values():
                if not call.answer.done():
                    call.answer.set_exception(_died(_last_words(code)))

    async def pass_on_complaints(self) -> None:
        """What it and its children say on stderr, into the server's log."""
        assert self.process.stderr is not None
        while piece := await self.process.stderr.read(64 * 1024):
            self._log.info("promotion worker: %s", piece.decode(errors="replace").rstrip())

    async def end(self) -> None:
        """It ends when its input does; killed when it does not."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _END_SECONDS)
        except TimeoutError:
            self._kill()
            await self.process.wait()

    def _heard(self, line: Mapping[str, Any]) -> None:
        call = self._calls.get(int(line["id"]))
        if call is None or call.answer.done():
            return
        if "step" in line:
            call.on_step({**line["step"], "text": without_address(line["step"]["text"])})
        elif "error" in line:
            call.answer.set_exception(_revived(line["error"], int(line["status"])))
        else:
            call.answer.set_result(line["answer"])

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()


async def _start(root: str) -> Process:
    # -P: the user's folder must not come before the library on the worker's module path
    command = [sys.executable, "-P", "-m", "slicelift.server.worker"]
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=root,
            limit=_LINE_BYTES,
            start_new_session=True,
        )
    except OSError as error:
        message = f"The promotion worker cannot be started: {error.strerror or error}."
        raise Unavailable("worker-died", message, "Try again; see the server's log if it stays.") from error


def _revived(body: Mapping[str, Any], status: int) -> SliceliftError:
    message, hint = (without_address(str(body.get(name, ""))) for name in ("message", "hint"))
    error = SliceliftError(str(body["code"]), message, hint, detail=body.get("detail"))
    error.http_status = status
    return error


def _last_words(code: int) -> str:
    if -code in _STARVED:
        return f"Exit status {code}, most likely for want of memory: read large values from files."
    return f"Exit status {code}."


def _died(why: str) -> Unavailable:
    hint = "Try again: it starts anew by itself, and no second job can come of it."
    return Unavailable("worker-died", f"The process that checks and promotes notebooks ended. {why}", hint)
