"""Sessions on one machine: a profile is chosen, its slice leased, and JupyterLab started in the user's own home.

The lease is taken before anything runs and given back when nothing of the session lives any more
(`slicelift_hub.sessions`). Nothing free means no: a session never queues, the refusal names what could start now.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner
from jupyterhub.utils import random_port
from slicelift.errors import SliceliftError, Unavailable
from slicelift.launcher_client import default_home
from slicelift.runtime import processes
from sqlalchemy.exc import SQLAlchemyError
from traitlets import Bool, Float, Unicode, default

from slicelift_hub import homes, inventory, isolation
from slicelift_hub.asking import TOLD, ProfiledSpawner, session_variables, told_of
from slicelift_hub.choices import PROFILE, Machine, make_needs, what
from slicelift_hub.leases import GPUS
from slicelift_hub.sessions import MARKER, Session, make_holder, of_home
from slicelift_hub.starting import devices, held_words, is_served, last_words, open_log, to_end


class LocalSliceSpawner(ProfiledSpawner, LocalProcessSpawner):  # type: ignore[misc]
    """Starts JupyterLab as a process of this machine, with the slice of the chosen profile."""

    home = Unicode(
        help="The launcher's home: ledger with the leases, users' homes, logs. Default: SLICELIFT_HOME, "
        "else the XDG data folder."
    ).tag(config=True)
    demo = Unicode(
        "",
        help="A project (a folder with notebooks and .dvc) that is copied into the home of each new user, with its DVC "
        "data, as a git repository of its own. Empty: homes begin empty.",
    ).tag(config=True)
    check_slices = Bool(
        True, help="Ask NVML before each start whether the leased MIG instance is still there."
    ).tag(config=True)
    answer_seconds = Float(
        100, help="How long a session may take to open its port before its start counts as failed."
    ).tag(config=True)

    @default("home")  # type: ignore[untyped-decorator]
    def _default_home(self) -> str:
        return str(default_home())

    @default("cmd")  # type: ignore[untyped-decorator]
    def _default_cmd(self) -> list[str]:
        # -P: a random.py in the user's home must not stand in for the standard library's
        return [sys.executable, "-P", "-m", "jupyterhub.singleuser"]

    @default("term_timeout")  # type: ignore[untyped-decorator]
    def _default_term_timeout(self) -> int:
        return 10

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._session: Session | None = None
        self._told: dict[str, Any] = {}
        self._pid_start = 0
        self._boot_id = ""
        self._beginning: asyncio.Future[tuple[str, int]] | None = None
        self._given_back = False
        self._news: list[str] = []

    @property
    def holder(self) -> str:
        """How this server is named in the leases: `session:<user>:<server name>`, the user's name URL-escaped."""
        return make_holder(self.user.name, self.name)

    async def look(self) -> Machine:
        """One look at the ledger."""
        return await to_end(_look, Path(self.home))

    async def start(self) -> tuple[str, int]:
        """Lease, then run; returns address and port. Raises `Refusal` with nothing held and nothing running.

        Called off it returns at once, since the hub waits one second for that; `stop` waits for what was under way.
        """
        await self._until_begun()
        self._given_back, self._news = False, []
        self._beginning = asyncio.ensure_future(self._begin())
        try:
            return await asyncio.shield(self._beginning)
        except asyncio.CancelledError:
            self._beginning.cancel()
            raise

    async def stop(self, now: bool = False) -> None:
        """End the server, then whatever of the session still lives, then give the slice back."""
        if self._beginning is not None:
            self._beginning.cancel()
        await self._until_begun()
        if await self.poll() is None and not now:
            await self._signal(signal.SIGTERM)
            await self.wait_for_death(self.term_timeout)
        await self._give_back()
        self._status()

    async def poll(self) -> int | None:
        """None while the server runs, else its exit status (0 where nobody saw it); then the lease is given back."""
        status = self._status()
        if status is not None and (self._beginning is None or self._beginning.done()):
            await self._give_back()
        return status

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What the start is doing, one sentence a step."""
        told = 0
        while True:
            for text in self._news[told:]:
                told += 1
                yield {"progress": min(90, 20 * told), "message": text}
            await asyncio.sleep(0.2)

    def get_state(self) -> dict[str, Any]:
        """What a restarted hub needs to know the process again, and what the culler judges by."""
        state: dict[str, Any] = super().get_state()
        if not self.pid:
            return state
        state |= {"pid_start": self._pid_start, "boot_id": self._boot_id}
        state["address"] = f"http://127.0.0.1:{self.server.port if self.server else self.port}"
        return state | self._told

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        super().load_state(state)
        self._pid_start, self._boot_id = state.get("pid_start", 0), state.get("boot_id", "")
        self._told = {name: state[name] for name in TOLD if name in state}

    def clear_state(self) -> None:
        """Forget the process; the lease is given back by `poll` and `stop`."""
        super().clear_state()
        self._forget_process()

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """The user's own place, and what the session may use of this machine. What we say wins."""
        home = Path(self.home) / homes.HOMES / homes.slug(self.user.name)
        bin_folder = str(Path(sys.executable).parent)
        ours = {"HOME": str(home), "USER": self.user.name, "SHELL": "/bin/bash"}
        ours["PATH"] = os.pathsep.join([bin_folder, env.get("PATH", os.defpath)])
        profile = self._told.get(PROFILE, "")
        ours |= session_variables(self.launcher_url, token=self.api_token, profile=profile)
        return {"LANG": "C.UTF-8"} | env | ours | devices(self._session) | isolation.session_environment()

    def get_args(self) -> list[str]:
        """Jupyter's server refuses to run as root unless it is told to; what isolation wants of it comes along."""
        allowed = ["--allow-root"] if os.geteuid() == 0 and isolation.available() else []
        return [*super().get_args(), *allowed, *isolation.session_arguments()]

    async def _begin(self) -> tuple[str, int]:
        try:
            await self._lease()
            await self._launch()
            await self._until_it_answers()
        except SliceliftError as error:
            await self._give_back()
            raise self.refused(error, instead=None) from None
        except SQLAlchemyError as error:
            await self._give_back()
            self.log.exception("The ledger of %s could not be used.", self.home)
            message = f"The ledger cannot be used: {type(error).__name__}."
            raise self.refused(
                SliceliftError("ledger-unusable", message, "Is the disk full?"), instead=None
            ) from error
        except BaseException:
            await self._give_back()
            raise
        return ("127.0.0.1", self.port)

    async def _until_begun(self) -> None:
        """Wait until the last start has come to its end, one way or the other."""
        if self._beginning is not None:
            await asyncio.wait({self._beginning})

    async def _signal(self, sig: int) -> bool:
        """To exactly our process: its pid may be another's by now."""
        process = processes.look(self.pid) if self.pid else None
        if process is None or process.start_time != self._pid_start:
            return False
        return processes.send(process, signal.Signals(sig)) if sig else True

    def _status(self) -> int | None:
        if self.proc is not None:
            status: int | None = self.proc.poll()
        else:
            here = bool(self.pid) and self._boot_id == processes.boot_id()
            status = None if here and processes.alive((self.pid, self._pid_start)) else 0
        if status is not None:
            # not its token, which the hub is to take back
            self._forget_process()
        return status

    def _forget_process(self) -> None:
        self.pid, self._pid_start, self._boot_id, self._told = 0, 0, "", {}

    async def _lease(self) -> None:
        root = Path(self.home)
        choice = self.chosen()
        profile = choice.profile
        ledger = await to_end(of_home, root)
        left = await to_end(ledger.end, self.holder)
        if left:
            message = f"The last session has not ended: {', '.join(left)} cannot be killed."
            raise Unavailable("session-still-ending", message, "An admin can free the device.")
        await to_end(ledger.reconcile)
        await self.must_be_free(profile)
        self._session = await to_end(ledger.begin, self.holder, make_needs(profile))
        if self._session is None:  # somebody was quicker
            await self.must_be_free(profile)
            raise Unavailable("capacity", f"No {what(profile)} is free.", "Try again in a moment.")
        self._told = told_of(choice)
        self._news += [text for text in (choice.note, held_words(self._session)) if text]
        await self._must_be_there(self._session)

    async def _must_be_there(self, session: Session) -> None:
        """A MIG instance can be gone since the launcher declared it: whoever re-cut the GPU told nobody."""
        for item in session.items if self.check_slices else ():
            real = item.uuid and item.pool != GPUS
            if real and not await to_end(inventory.still_there, item.uuid):
                message = (
                    f"The slice {item.pool} ({item.uuid}) is no longer on this machine: its GPU was cut anew."
                )
                raise Unavailable(
                    "slices-changed", message, "An admin restarts the launcher, which looks again."
                )

    async def _launch(self) -> None:
        root = Path(self.home)
        demo = Path(self.demo) if self.demo else None
        folder = await to_end(functools.partial(homes.prepare, root, self.user.name, demo=demo))
        self.port = random_port()
        command = await to_end(self._command, folder)
        environment = self.get_env()
        if self._session is not None:
            environment[MARKER] = self._session.session_id
        with open_log(self._log_path()) as log:
            self.proc = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.proc.pid
        started = processes.look(self.pid)
        self._pid_start, self._boot_id = started.start_time if started else 0, processes.boot_id()
        ledger = await to_end(of_home, root)
        await to_end(ledger.started, self.holder, self.pid)
        self._news.append("JupyterLab is starting.")

    def _command(self, folder: Path) -> list[str]:
        """As the user's own system user where the machine can do it; blocks for useradd at the first time."""
        command = [*self.cmd, *self.get_args()]
        if isolation.available():
            return [sys.executable, "-P", "-m", "slicelift_hub.adopter", *command]
        return isolation.enclosed_command(
            self.user.name,
            command,
            writable=[folder],
            home=Path(self.home),
            name=self._session.session_id if self._session else "",
        )

    async def _until_it_answers(self) -> None:
        """Return when the session's port is open; a session that dies says why, at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.answer_seconds
        while loop.time() < deadline and self.proc.poll() is None:
            if await to_end(is_served, self.port, processes.user_of(self.pid)):
                self._told["since"] = time.time()
                return
            await asyncio.sleep(0.1)
        status = self.proc.poll()
        found = "did not answer" if status is None else f"ended at once (exit status {status})"
        words = last_words(self._log_path())
        self.log.error("The session of %s %s: %s", self._log_name, found, words)
        hint = f"Its last words: {words}" if words else "Look into the hub's log."
        raise SliceliftError("session-failed", f"JupyterLab {found}.", hint)

    async def _give_back(self) -> None:
        """End what is left of the session and free its lease, once. What fails here the launcher does later."""
        if self._given_back:
            return
        try:
            ledger = await to_end(of_home, Path(self.home))
            left = await to_end(ledger.end, self.holder)
        except (SQLAlchemyError, OSError):
            self.log.exception("The lease of %s could not be given back.", self.holder)
            return
        self._given_back = not left
        if left:
            self.log.error("%s keeps its lease: %s cannot be killed.", self.holder, ", ".join(left))

    def _log_path(self) -> Path:
        # a plus is in no slug: another user's log must not have the same name
        name = homes.slug(self.user.name) + (f"+{homes.slug(self.name)}" if self.name else "")
        return Path(self.home) / "hub" / "sessions" / f"{name}.log"


def _look(root: Path) -> Machine:
    ledger = of_home(root)
    return Machine(inventory=inventory.published(root), pools=ledger.capacity(), waiting=ledger.waiting())
