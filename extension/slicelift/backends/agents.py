"""The agent of a local attempt as seen from outside: start it, look at it, interrupt it, end what it left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from slicelift.errors import SliceliftError
from slicelift.models import Failure, Status, to_dict
from slicelift.runtime import processes
from slicelift.runtime.folder import CAREFUL, AttemptFolder, lock_is_held, locked, read_json, read_object
from slicelift.runtime.launch import inherited, plain
from slicelift.runtime.processes import MARKER, Ending, Tree

# agents of this process whose exit status was not collected yet
_unreaped: set[int] = set()
# when a delivering agent was last tried, by the folder of its attempt (monotonic seconds)
_tried: dict[str, float] = {}
_RETRY_SECONDS = 10.0

# an agent's command, and whether it is to have a seat for ranks -> the command that starts it enclosed
Enclose = Callable[[list[str], bool], list[str]]


class AgentHandle:
    """One attempt's agent. Holds no state of its own: every answer is read anew.

    A folder that belongs to another user than root is that user's to write: what it says is believed about that user's
    processes only.
    """

    def __init__(self, folder: AttemptFolder, *, enclose: Enclose | None = None) -> None:
        self._folder = folder
        self._enclose = enclose
        self._uid = _owner_of(folder)

    def begun(self) -> bool:
        """True once the attempt has, or had, an agent, or has ended without one."""
        return self._folder.exit.exists() or self._folder.agent.exists() or self._lock_held()

    def alive(self) -> bool:
        """True while the agent's process lives (a stopped one lives)."""
        _reap()
        key = self.key()
        return (processes.alive(key) and self._may_touch(key)) if key else self._lock_held()

    def lost(self) -> bool:
        """True when there was an agent and it is dead. Ask only after `alive` said no."""
        return self._folder.agent.exists() and not self._folder.exit.exists()

    def key(self) -> tuple[int, int] | None:
        """(pid, start time) of the agent, None before it wrote them or when it ran in another boot."""
        told = read_object(self._folder.agent)
        if told.get("boot_id") != processes.boot_id():
            return None
        return _key([told.get("pid"), told.get("start_time")])

    def spawn(self, *options: str) -> int:
        """Start an agent, detached: own session, no terminal, output into agent.log. Its pid.

        Raises SliceliftError "agent-not-ours" where the attempt is another user's and nothing would make its agent so.
        """
        root = self._folder.root
        # -S: the agent is standard library only, and site-packages would cost it a third of its start
        command = [sys.executable, "-S", "-P", "-m", "slicelift.runtime.agent", *options, str(root)]
        variables = {"PYTHONPATH": str(self._folder.runtime), MARKER: root.name}
        environment = inherited(os.environ)
        if self._enclose is not None:
            command, environment = self._enclose(command, not options), plain(environment)
        elif self._uid is not None:
            message = f"The attempt {root.name} belongs to user {self._uid} of the system: its agent must not be root's."
            raise SliceliftError("agent-not-ours", message, "Start the hub with isolation, as it was before.")
        # it becomes the agent's standard output, which must outlive the exec
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (CAREFUL & ~os.O_CLOEXEC)
        pid = os.posix_spawn(
            sys.executable,
            command,
            {**environment, **variables},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._folder.agent_log), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD),
        )
        _unreaped.add(pid)
        return pid

    def wait_begun(self, pid: int, seconds: float) -> None:
        """Wait until the agent has said who it is. Raises SliceliftError when it, our child, ended before that."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._folder.agent.exists():
                return
            if not self._starting(pid):
                raise SliceliftError(
                    "agent-start-failed",
                    f"The agent of {self._folder.root.name} ended at once: {self._last_words()}",
                    f"Its output is in {self._folder.agent_log}.",
                )
            time.sleep(0.005)

    def wait_over(self, seconds: float) -> None:
        """Wait until it has written how the job ended, or is dead, or for `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._folder.exit.exists() and self.alive():
            time.sleep(0.02)

    def wait_gone(self, seconds: float) -> None:
        """Wait until the agent has delivered everything and is gone, or for `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.alive():
            time.sleep(0.02)

    def interrupt(self) -> None:
        """SIGTERM to the living agent, and SIGCONT in case it is stopped. One that is dead is left alone."""
        key = self.key()
        found = processes.look(key[0]) if key else None
        if found is not None and found.key == key and self._may_touch(key):
            processes.send(found, signal.SIGTERM)
            processes.send(found, signal.SIGCONT)

    def done(self) -> bool:
        """True when nothing is left to be delivered: it all is, or there never was an agent."""
        return self._folder.delivered.exists() or not self._folder.agent.exists()

    def deliver_if_left(self) -> None:
        """Start a delivering agent when the attempt is over, not delivered, and its agent is dead."""
        if self.done() or self.alive():
            return
        # a status is asked several times a second; an agent that cannot start is not tried as often
        name, now = str(self._folder.root), time.monotonic()
        if now - _tried.get(name, -_RETRY_SECONDS) >= _RETRY_SECONDS:
            _tried[name] = now
            with suppress(OSError):
                self.spawn("--deliver")

    def tree(self, *, with_agent: bool) -> Tree:
        """How to find the attempt's processes; the agent itself is spared unless `with_agent`."""
        key = self.key()
        known = read_json(self._folder.seen) if key else None
        seen = map(_key, known if isinstance(known, list) else ())
        return Tree(
            attempt_id=self._folder.root.name,
            agent=key,
            known=frozenset(process for process in seen if process),
            spare=frozenset() if with_agent or not key else frozenset((key[0],)),
            uid=self._uid,
        )

    def _may_touch(self, key: tuple[int, int] | None) -> bool:
        return self._uid is None or key is None or processes.user_of(key[0]) == self._uid

    def _lock_held(self) -> bool:
        return lock_is_held(self._folder.agent_lock)

    def _starting(self, pid: int) -> bool:
        _reap()
        # a process that is just being exec'ed shows no environment yet, so its marker alone does not tell
        if pid in _unreaped or self._folder.agent.exists():
            return True
        # ours gave way to the agent of a submit that was cut off
        return bool(processes.find(Tree(attempt_id=self._folder.root.name))) or self._folder.agent.exists()

    def _last_words(self) -> str:
        try:
            lines = self._folder.agent_log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "it wrote nothing."
        return lines[-1] if lines else "it wrote nothing."


def settle(folder: AttemptFolder, agent: AgentHandle, *, reason: str | None = None) -> Ending:
    """End all that is left of the attempt and write its exit status if its agent did not.

    With an exit status in place the agent is spared: it only delivers. Idempotent.
    """
    with locked(folder.lock):
        over = folder.exit.exists()
        tree = agent.tree(with_agent=not over)
        ending = processes.end(lambda: processes.find(tree), grace_seconds=0)
        # an agent that was just writing its exit status has the last word
        if not folder.exit.exists() and not ending.left:
            folder.write_last(folder.exit, _unwitnessed(folder, agent, reason=reason, ending=ending))
    return ending


def _unwitnessed(
    folder: AttemptFolder, agent: AgentHandle, *, reason: str | None, ending: Ending
) -> dict[str, object]:
    """The exit status of an attempt whose agent cannot tell it."""
    wish = read_object(folder.cancel)
    base: dict[str, object] = {"exit_code": None, "failure": None, "ended": time.time()}
    if reason is not None or wish:
        killed = str(reason or wish.get("reason", ""))
        return {**base, "status": Status.KILLED.value, "reason": killed, "message": killed}
    cause = "the machine was restarted" if agent.key() is None else "it was killed"
    message = (
        f"The job's agent is gone without an exit status ({cause}). "
        f"{ending.found} processes of the job were ended; `slicelift retry` starts it again."
    )
    return {
        **base,
        "status": Status.FAILED.value,
        "reason": "agent-lost",
        "message": message,
        "failure": to_dict(Failure(message=message)),
    }


def _owner_of(folder: AttemptFolder) -> int | None:
    """The user of the system that the attempt was given to, None when it runs as whoever started it."""
    try:
        uid = folder.root.lstat().st_uid
    except OSError:
        return None
    return None if uid in (0, os.geteuid()) else uid


def _key(told: object) -> tuple[int, int] | None:
    """(pid, start time) as a file says it, None when it says something else."""
    if isinstance(told, list) and len(told) == 2 and all(isinstance(number, int) for number in told):
        return (told[0], told[1])
    return None


def _reap() -> None:
    for pid in list(_unreaped):
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            done = pid
        if done:
            _unreaped.discard(pid)
