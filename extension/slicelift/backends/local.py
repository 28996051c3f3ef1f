"""Jobs on this machine: an agent per attempt, in its own session, that outlives whoever started it.

Everything the backend knows lies in the attempt's folder, so a restarted launcher finds its jobs again.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from slicelift_profiles import presets

from slicelift.backends.agents import AgentHandle, Enclose, settle
from slicelift.backends.base import GONE, Attempt, Enclosure, Manifest, Proof
from slicelift.errors import NotFound, Refused, SliceliftError, UserError
from slicelift.models import Failure, JobSpec, JobStatus, Status, from_dict, to_dict
from slicelift.runtime.folder import AttemptFolder, locked, read_object, write_json
from slicelift.runtime.launch import GRACE_SECONDS, gang_command, gang_variables

_PREFIX = "local://"
_START_SECONDS = 30.0
# patience with an agent beyond the grace of its gang, before the backend ends everything itself
_AGENT_SECONDS = 5.0
_MESSAGE_LENGTH = 64 * 1024
# how long the ranks of a suspended job may take to save a checkpoint
SAVING_SECONDS = 60.0
# of which who asks waits so long at a time
_SAVING_LOOK_SECONDS = 1.0


class Local:
    """The backend "local". `home` is SLICELIFT_HOME; attempts lie in `home/attempts/<attempt id>`.

    An agent waits `patience_seconds` for a launcher that is away, before a job's start and again after its end. The ranks
    of a job that is suspended have `saving_seconds` for their next checkpoint. With an `enclosure`, which takes root, a job
    runs as its owner's user of the system; else as whoever runs this.
    """

    name = "local"
    leased = True

    def __init__(
        self,
        home: Path,
        *,
        patience_seconds: float = 24 * 3600.0,
        saving_seconds: float = SAVING_SECONDS,
        enclosure: Enclosure | None = None,
    ) -> None:
        self.home = home.absolute()
        self._saving_seconds = saving_seconds
        # attempt -> until when (monotonic) its ranks may save; it is asked to end once
        self._saving_until: dict[str, float] = {}
        self._patience_seconds = patience_seconds
        self._enclosure = enclosure

    def render(self, spec: JobSpec, attempt: Attempt) -> Manifest:
        """What `submit` would start, as a dict without token and secrets. Pure."""
        folder = self.folder(attempt.attempt_id)
        request = self._request(spec, attempt)
        uri = "(the agent, on loopback)"
        return {
            "kind": "LocalGang",
            "name": spec.name,
            "attempt": attempt.attempt_id,
            "workers": spec.workers,
            "interpreter": spec.python,
            "command": gang_command(spec, folder),
            "cwd": str(folder.workspace / spec.cwd),
            "environment": gang_variables(spec, request, folder=folder, tracking_uri=uri),
            "secrets": list(spec.secrets),
            "data": [
                {"path": ref.path, "md5": ref.md5, "size_bytes": ref.size_bytes, "read_only": True}
                for ref in spec.data
            ],
            "slots": spec.workers,
            "gpus_per_worker": spec.gpus_per_worker,
            "slice": spec.slice,
            "slice_uuid": attempt.slice_uuid,
            "limits": {"grace_seconds": GRACE_SECONDS, "restarts": 0},
        }

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:  # noqa: ARG002 - the same for all attempts
        """What of the preset one machine goes without.

        Raises `Refused` for what takes a cluster: "elastic-one-machine", "image-one-machine".
        """
        if spec.least_workers != spec.workers:
            message = (
                f"On one machine a gang has all its {spec.workers} workers or none, not {spec.min_workers}."
            )
            raise Refused(
                "elastic-one-machine", message, "Leave min_workers out, or use the launcher of a cluster."
            )
        if spec.image:
            message = f"On one machine jobs run in the kernel's own environment, not in the image {spec.image[:100]}."
            raise Refused(
                "image-one-machine", message, "Leave the image out, or use the launcher of a cluster."
            )
        return _left_out(spec)

    def listen(self, changed: Callable[[str], None]) -> None:
        """Nothing: whoever asks finds the answer in the attempt's folder."""

    def capacity(self) -> Mapping[str, Any] | None:
        """None: the launcher's leases know."""
        return None

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:  # noqa: ARG002 - the agent does it
        """None: the agent of a job fetches its data."""
        return None

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:  # noqa: ARG002 - its folder tells
        """The handle of an attempt that has a folder, whatever has come of it; "" for any other."""
        handle = _PREFIX + attempt.attempt_id
        return handle if self._known(handle) else ""

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        """Start the attempt's agent, once for ever: an attempt that ran or was cancelled is not run again.

        Safe to repeat, at the same time too, and after a kill between any two of its steps. Raises
        `UserError` "interpreter-missing", what `plan` raises, and `SliceliftError` "attempt-disk-full" or "agent-start-failed".
        """
        self.plan(spec, attempt)
        folder = self.folder(attempt.attempt_id)
        try:
            folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(folder.lock):
                if not AgentHandle(folder).begun():
                    self._start(folder, spec, attempt)
        except OSError as error:
            raise _no_room(folder, error) from error
        return _PREFIX + attempt.attempt_id

    def status(self, handle: str) -> JobStatus:
        """One look. An agent that died without an exit status has its processes ended first: FAILED, "agent-lost".

        UNKNOWN with reason "never-started" says that a `submit` was cut off and may be repeated. The phase
        "delivering" beside a terminal status says that the agent still sends what the job left.
        """
        folder = self._known(handle)
        if folder is None:
            return JobStatus(
                status=Status.UNKNOWN,
                reason=GONE,
                message=f"This machine holds no folder for {handle}.",
            )
        agent = self._agent(folder)
        if not folder.exit.exists() and not agent.alive() and agent.lost():
            try:
                settle(folder, agent)
            except OSError as error:
                return JobStatus(status=Status.UNKNOWN, reason="attempt-disk-full", message=str(error))
        if folder.exit.exists():
            with suppress(SliceliftError):
                agent.deliver_if_left()
            return _ended(folder, agent)
        return _under_way(folder, agent)

    def cancel(
        self, handle: str, *, reason: str, grace_seconds: float = GRACE_SECONDS, saving: bool = False
    ) -> Proof:
        """End every process of the attempt and prove it; the attempt ends KILLED with this reason.

        Takes at most `grace_seconds` + 20 s. With `saving`, a gang that has ever saved a checkpoint first has the
        backend's own seconds to reach its next one; this returns after one of them, to be repeated. The agent ends
        its gang and then itself; when it is dead, does not react or never came up, this process does it. On a job
        that is over it only searches and proves. An agent that lives on to deliver does not count as left.
        """
        folder = self._known(handle)
        if folder is None:
            return Proof(gone=True)
        agent = self._agent(folder)
        if not folder.exit.exists():
            wish = {"reason": reason, "grace_seconds": grace_seconds}
            if saving and self._still_saves(folder, agent, wish):
                return Proof(gone=False)
            if not saving:
                self._ask(folder, agent, wish)
                agent.wait_over(grace_seconds + _AGENT_SECONDS)
        self._saving_until.pop(folder.root.name, None)
        if folder.exit.exists():
            agent.wait_gone(_AGENT_SECONDS)
        ending = settle(folder, agent, reason=reason)
        told = read_object(folder.exit).get("ended_processes", 0)
        ended = told if isinstance(told, int) else 0
        return Proof(gone=not ending.left, killed=ending.found + ended, left=ending.left)

    def scale(self, handle: str, workers: int) -> None:  # noqa: ARG002 - the same for all
        """Raises `Refused` "scale-one-machine"."""
        message = "On one machine a gang keeps the workers that it began with."
        hint = "Cancel it and promote it with another number, or use the launcher of a cluster."
        raise Refused("scale-one-machine", message, hint)

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:
        """Remove the attempt's folder but for the names in `keep`; whether that is done.

        Does nothing while it runs or delivers. What cannot be removed is left, and tried again the next time.
        """
        folder = self._known(handle)
        if folder is None:
            return True
        if not folder.exit.exists() or AgentHandle(folder).alive():
            return False
        kept = {name for name, wanted in (keep or {}).items() if wanted}
        # the exit status is what says that this attempt is over: it goes last, with the folder
        doomed = [entry for entry in folder.root.iterdir() if entry.name not in kept and entry != folder.exit]
        for entry in doomed:
            _remove(entry)
        if any(entry.exists() for entry in doomed):
            return False
        if not kept:
            shutil.rmtree(folder.root, ignore_errors=True)
            for beside in (folder.record, folder.lock):
                beside.unlink(missing_ok=True)
        return bool(kept) or not folder.root.exists()

    def folder(self, attempt_id: str) -> AttemptFolder:
        """The folder of an attempt, whether it exists or not. Raises NotFound on what is no attempt id."""
        if not attempt_id.replace("-", "").isalnum() or not attempt_id.isascii():
            raise NotFound("no-such-attempt", f"{attempt_id!r} is not the id of an attempt.")
        return AttemptFolder(self.home / "attempts" / attempt_id)

    def _known(self, handle: str) -> AttemptFolder | None:
        try:
            folder = self.folder(handle.removeprefix(_PREFIX))
        except NotFound:
            return None
        return folder if folder.root.is_dir() else None

    def _request(self, spec: JobSpec, attempt: Attempt) -> dict[str, object]:
        """The content of agent.json but for the token."""
        state_file, cache = self.home / "launcher.json", self.home / "cache"
        if self._enclosure is not None:
            # the state file holds the launcher's own token
            state_file, cache = self._enclosure.address_file, self._enclosure.cache(attempt.owner)
        return {
            "attempt_id": attempt.attempt_id,
            "run_id": attempt.run_id,
            "promotion_id": attempt.promotion_id,
            "attempt": attempt.attempt,
            "launcher_url": attempt.launcher_url,
            "state_file": str(state_file),
            "cache": str(cache),
            "checkpoints": str(self._checkpoints(attempt.run_id)),
            "slice_uuid": attempt.slice_uuid,
            "gpus": list(attempt.gpus),
            "patience_seconds": self._patience_seconds,
            "spec": to_dict(spec),
        }

    def _start(self, folder: AttemptFolder, spec: JobSpec, attempt: Attempt) -> None:
        # root may run what the owner may not even see: there the agent looks
        if self._enclosure is None and not os.access(spec.python, os.X_OK):
            raise UserError(
                "interpreter-missing",
                f"The job's Python interpreter {spec.python} does not exist or cannot be run.",
                "Choose an installed kernel for the notebook, or name an interpreter with --python.",
            )
        write_json(folder.request, {**self._request(spec, attempt), "token": attempt.token})
        _copy_runtime(folder.runtime / "slicelift")
        if self._enclosure is not None:
            # as root's it could not be read by the agent that writes it
            folder.agent_log.touch(mode=0o600)
            write_json(folder.record, {"owner": attempt.owner})
            self._enclosure.give(attempt.owner, folder.root)
        agent = self._agent(folder)
        agent.wait_begun(agent.spawn(), _START_SECONDS)

    def _agent(self, folder: AttemptFolder) -> AgentHandle:
        return AgentHandle(folder, enclose=self._enclose(folder))

    def _enclose(self, folder: AttemptFolder) -> Enclose | None:
        """How an agent of this attempt is to be started; None for one that was begun without an enclosure."""
        owner = read_object(folder.record).get("owner")
        if self._enclosure is None or not isinstance(owner, str):
            return None
        return partial(self._command, self._enclosure, folder, owner)

    def _command(
        self, enclosure: Enclosure, folder: AttemptFolder, owner: str, command: list[str], ranks: bool
    ) -> list[str]:
        """`command` with what an attempt may write to; its ranks may not change the data.

        Nothing here comes from the attempt's folder: its user can write to that, and what is named is given to them.
        """
        cache = enclosure.cache(owner)
        checkpoints = self._checkpoints(folder.root.name.rpartition("-")[0])
        writable = [folder.root, cache, checkpoints]
        return enclosure.agent_command(owner, command, writable=writable, read_only=[cache], ranks=ranks)

    def _checkpoints(self, run_id: str) -> Path:
        return self.home / "checkpoints" / run_id

    def _ask(self, folder: AttemptFolder, agent: AgentHandle, wish: dict[str, Any]) -> None:
        """Ask the agent to end its job, if it lives."""
        with locked(folder.root / "submit.lock"):
            # on a full disk the agent still gets the signal, only not the words
            with suppress(OSError):
                folder.write_last(folder.cancel, {**wish, "time": time.time()})
            if not agent.begun():
                return
        agent.interrupt()

    def _still_saves(self, folder: AttemptFolder, agent: AgentHandle, wish: dict[str, Any]) -> bool:
        """Have the job suspended, asked for once; whether its ranks may go on to their next checkpoint for now."""
        name, now = folder.root.name, time.monotonic()
        if name not in self._saving_until:
            self._ask(folder, agent, {**wish, "saving_seconds": self._saving_seconds})
            self._saving_until[name] = now + self._saving_seconds + wish["grace_seconds"] + _AGENT_SECONDS
        agent.wait_over(min(_SAVING_LOOK_SECONDS, self._saving_until[name] - now))
        under_way = not folder.exit.exists() and agent.alive()
        return under_way and time.monotonic() < self._saving_until[name]


def _left_out(spec: JobSpec) -> list[str]:
    """A job runs all the same without what its preset asks of a cluster, but not without a word."""
    known = {preset.name: preset.cluster.lost_on_one_machine for preset in presets.load().presets}
    names = ", ".join(name.replace("_", " ") for name in known.get(spec.preset, ()))
    return (
        [f"One machine goes without what the preset {spec.preset} asks of a cluster: {names}."]
        if names
        else []
    )


def _under_way(folder: AttemptFolder, agent: AgentHandle) -> JobStatus:
    if not agent.begun():
        return JobStatus(
            status=Status.UNKNOWN,
            reason="never-started",
            message="The start of this attempt was cut off before its agent ran; submitting it again starts it.",
        )
    told = read_object(folder.state)
    phase = str(told.get("state", "starting"))
    status = Status.RUNNING if phase == "running" else Status.STARTING
    if folder.cancel.exists():
        status = Status.CANCELLING
    return JobStatus(status=status, phase=phase, message=str(told.get("message", "")))


def _ended(folder: AttemptFolder, agent: AgentHandle) -> JobStatus:
    told = read_object(folder.exit)
    phase, failure, code = (
        "ended" if agent.done() else "delivering",
        told.get("failure"),
        told.get("exit_code"),
    )
    try:
        return JobStatus(
            status=_terminal(told.get("status", Status.FAILED.value)),
            phase=phase,
            reason=str(told.get("reason", "")),
            message=str(told.get("message", ""))[:_MESSAGE_LENGTH],
            failure=from_dict(Failure, failure) if failure else None,
            exit_code=code if isinstance(code, int) else None,
        )
    except (TypeError, ValueError, AttributeError):
        # it lies in a folder that the job's own processes can write to
        message = "The job's exit status is not one: something has overwritten it."
        return JobStatus(status=Status.FAILED, phase=phase, reason="exit-unreadable", message=message)


def _terminal(word: object) -> Status:
    """Raises ValueError on anything but an end."""
    status = Status(str(word))
    if not status.terminal:
        raise ValueError(word)
    return status


def _copy_runtime(target: Path) -> None:
    """Facade, words and runtime as they are now: an upgrade of the launcher does not reach a running job."""
    source = Path(sys.modules["slicelift.errors"].__file__ or "").parent
    if target.exists():
        return
    partial = target.with_name(f".slicelift.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in ("__init__.py", "_version.py", "errors.py", "models.py", "py.typed"):
        shutil.copy2(source / name, partial / name)
    shutil.copytree(source / "runtime", partial / "runtime", ignore=shutil.ignore_patterns("*.tmp"))
    partial.rename(target)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(OSError):
            entry.unlink()


def _no_room(folder: AttemptFolder, error: OSError) -> SliceliftError:
    return SliceliftError(
        "attempt-disk-full" if error.errno in (28, 122) else "attempt-folder-failed",
        f"The folder of the attempt, {folder.root}, cannot be written: {error.strerror or error}.",
        "Free space or mend the rights of that folder, then submit again: the job keeps its place.",
    )
