"""The parent of a gang: `python -m slicelift.runtime.agent [--deliver] FOLDER`, one per attempt (DESIGN 9.2).

It unpacks the snapshot, lays out the data, starts the gang, ships what the ranks write, and writes exit.json
when nothing of the job lives any more. Then it delivers what is left, also to a launcher that comes back much
later. With `--deliver` it does only that last part, in place of an agent that was killed. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from slicelift.errors import NotFound, SliceliftError
from slicelift.models import JobSpec, Status, from_dict
from slicelift.runtime import checking, data, preparation, processes
from slicelift.runtime.cancel import CancelRequest
from slicelift.runtime.delivery import Outputs, Watch, patiently, send_models
from slicelift.runtime.folder import AttemptFolder, read_object, write_json
from slicelift.runtime.launch import GRACE_SECONDS, gang_environment, gang_variables, with_scripts_of
from slicelift.runtime.link import Link
from slicelift.runtime.mlflow_loopback import Loopback
from slicelift.runtime.mounts import enter_namespace
from slicelift.runtime.nodes import place_of_request
from slicelift.runtime.presence import be_the_only_one, introduce
from slicelift.runtime.seat import Seat, take
from slicelift.runtime.shipping import Report, Shipper, say
from slicelift.runtime.streams import has_points
from slicelift.runtime.supervision import LEFTOVER_SECONDS, Gang, free_bytes
from slicelift.runtime.verdict import CANCELLED, Verdict, cancelled, data_changed, fault, judge, os_fault

if TYPE_CHECKING:
    from slicelift.runtime.gpus import GpuWatch

# how long a job waits for a launcher that is away, before its start and again after its end
PATIENCE_SECONDS = 24 * 3600.0
_UPLOAD_SECONDS = 120.0
_LOW_DISK_BYTES = 16 * 1024 * 1024
# what a pod that was told to end keeps, of the time it has for that, to send the last points and logs
_LAST_WORDS_SECONDS = 8.0
_CHECKING = "Checking the network between the workers"


class Interrupted(BaseException):
    """The job is to end while it is still being prepared. Not an Exception: nothing on the way may swallow it."""


class Agent:
    """One attempt, or one node of it, from the request in agent.json to delivered.json."""

    def __init__(self, folder: AttemptFolder, *, mounts: bool, seat: Seat | None = None) -> None:
        self._folder = folder
        self._request = read_object(folder.request)
        self._spec = from_dict(JobSpec, self._request["spec"])
        self._cache = Path(str(self._request["cache"]))
        self._patience_seconds = float(self._request.get("patience_seconds", PATIENCE_SECONDS))
        self._mounts = mounts
        self._seat = seat
        self._link = Link(self._request)
        self._bulk = Link(self._request, timeout_seconds=_UPLOAD_SECONDS)
        self._place = place_of_request(self._request, self._spec)
        self._report = Report(self._place)
        self._outputs = Outputs(
            folder.workspace / self._spec.cwd / "outputs",
            folder.root / "outputs-before.json",
            below=f"worker-{self._place.node}" if self._place.node else "",
        )
        self._secrets: dict[str, str] = {}
        self._cancel = CancelRequest(folder, Path(str(self._request["checkpoints"])))
        self._gang = Gang(
            folder,
            str(self._request["attempt_id"]),
            place=self._place,
            seat=seat,
            saving="grace_seconds" in self._request,
        )
        self._shipper: Shipper | None = None
        self._watch: Watch | None = None
        self._gpus: GpuWatch | None = None
        self._ended = 0
        # when we were told to end, 0 if we were not
        self._interrupted = 0.0
        self._may_raise = False
        self._was_full = False
        self._checks = checking.is_asked(self._request, self._place)

    @property
    def interrupted(self) -> bool:
        """Whether it was told to end."""
        return bool(self._interrupted)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that no log may show, of those that are known by now."""
        return tuple(self._secrets.values())

    def run(self) -> None:
        """Do the job, write exit.json, deliver."""
        signal.signal(signal.SIGTERM, self._on_signal)
        # whoever made us, as the first process of a pod, may have held it back until there is this handler
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        verdict = self._work()
        ending = self._gang.end(self._grace() if verdict.status is Status.KILLED else LEFTOVER_SECONDS)
        if ending.left:
            say(f"these processes could not be ended: {', '.join(ending.left)}")
        verdict = self._tell_full(self._prove_data(verdict))
        exit_status = verdict.masked(self.secrets).to_exit(ended_processes=self._ended + ending.found)
        saved = bool(self._interrupted) and self._cancel.saved_since(self._interrupted)
        exit_status |= {"logged": has_points(self._folder.root / "spool"), "saved": saved}
        self._folder.write_last(self._folder.exit, exit_status)
        self.deliver()

    def deliver(self) -> None:
        """Bring events, logs, outputs and models to the launcher, then say that all is over."""
        # from here on only SIGKILL ends us, and another agent then takes over
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if not self._bring(self._shipping(), until=self._patience()):
                say("the launcher did not answer in time: what it has not got stays here")
                return
        except NotFound as error:
            # nobody will ask for them any more, and what lies here is all there is: it stays
            say(f"the launcher does not know this attempt any more: {error}")
        write_json(self._folder.delivered, {"time": time.time()})

    def deliver_instead(self) -> None:
        """Deliver in place of an agent that was killed. Without the secrets, which logs must not show, not at all."""
        try:
            self._secrets = preparation.fetch_secrets(self._spec, self._link, until=self._patience())
        except NotFound:
            write_json(self._folder.delivered, {"time": time.time()})
            return
        self.deliver()

    def _bring(self, shipper: Shipper, *, until: float) -> bool:
        """Everything to the launcher; False when the time is up. Raises NotFound when it knows the attempt no more."""
        exit_status = read_object(self._folder.exit)
        shipper.finish()
        if not shipper.wait_drained(until) or not self._send_files(exit_status, until=until):
            return False
        self._report.update(state="ended", message=exit_status.get("message", ""), exit=exit_status)
        if not shipper.close(until):
            return False
        if shipper.gone.is_set():
            raise NotFound("attempt-unknown", "It forgot the attempt before everything was delivered.")
        if self._spec.secrets and shipper.logs_whole:
            self._folder.remove_raw()
        return True

    def _work(self) -> Verdict:
        """Prepare and run the gang. Whatever happens, there is a verdict."""
        try:
            self._may_raise = True
            try:
                self._prepare()
            finally:
                self._may_raise = False
            self._check_interrupted()
            return self._train()
        except Interrupted:
            return self._cancelled()
        except SliceliftError as error:
            return fault(error)
        except OSError as error:
            return os_fault(error, self._folder.root)
        except Exception as error:  # noqa: BLE001 - a fault of ours must reach the user as a failed job
            say(traceback.format_exc())
            return fault(SliceliftError("agent-failed", f"The job's agent failed: {error!r}."))

    def _prepare(self) -> None:
        until = self._patience()
        self._check_interrupted()
        preparation.make_rooms(self._folder, Path(str(self._request["checkpoints"])))
        self._secrets = preparation.fetch_secrets(self._spec, self._link, until=until)
        self._shipping()
        preparation.check_secrets(self._spec, self._secrets)
        self._tell("Unpacking the snapshot")
        preparation.check_interpreter(self._spec)
        preparation.fetch_snapshot(self._spec, self._bulk, self._folder.workspace, until=until)
        preparation.lay_out_data(
            self._spec,
            self._cache,
            self._folder,
            secrets=self._secrets,
            mounts=self._mounts,
            say=self._tell,
        )
        if not self._place.alone:
            preparation.wait_for_name(self._place.master, say=self._tell)

    def _train(self) -> Verdict:
        # whatever lies there now came with the snapshot
        self._outputs.record()
        self._watch = Watch(self._outputs, Link(self._request, timeout_seconds=_UPLOAD_SECONDS))
        # rank 0 alone asks MLflow, and is on node 0 unless the gang is elastic
        loopback = self._loopback() if self._place.node == 0 or self._place.elastic else None
        try:
            checking.begin(self._folder.root)
            self._gang.start(self._spec, self._environment(loopback))
            self._watch.start()
            if self._still_checks():
                self._tell(_CHECKING)
            else:
                self._tell("", state="running")
            self._watch_gpus()
            code = self._gang.wait(interrupted=self._wants_end, note=self._note)
            if code is not None:
                return judge(self._folder, self._spec, code)
            # an elastic gang goes on: the last word of one worker, which may be killed before another, is not the gang's
            self._tell("" if self._place.elastic else "Ending", state="running")
            if self._let_save() == 0:
                return judge(self._folder, self._spec, 0)
            self._ended += self._gang.end(self._grace()).found
            return self._cancelled()
        finally:
            if loopback is not None:
                loopback.stop()

    def _watch_gpus(self) -> None:
        """Where the preset has a limit for GPUs that do nothing. A Python without ctypes trains as well."""
        if self._request.get("watch_gpus"):
            with suppress(ImportError):
                from slicelift.runtime.gpus import watch_gpus

                self._gpus = watch_gpus()

    def _shipping(self) -> Shipper:
        """The running shipper. Secrets must be known before, since it sends logs at once."""
        if self._shipper is None:
            node = self._place.node
            self._shipper = Shipper(
                self._folder,
                Link(self._request),
                self._report,
                secrets=self._secrets.values(),
                on_cancel=_interrupt_self,
                name=f"agent-{node}" if node else "agent",
                source=str(self._request.get("source", "")),
            )
            self._shipper.start()
        return self._shipper

    def _send_files(self, exit_status: dict[str, object], *, until: float) -> bool:
        """Outputs of every attempt, models of a finished one; False when the time is up."""
        if self._watch is not None:
            self._watch.finish()
        if self._outputs.recorded and not patiently(
            lambda: self._outputs.send(self._bulk, final=True), until=until
        ):
            return False
        if exit_status.get("status") != Status.FINISHED:
            return True
        models = self._folder.root / "models"
        return patiently(lambda: send_models(models, self._bulk), until=until)

    def _loopback(self) -> Loopback:
        return Loopback(
            self._folder.root / "spool",
            self._link.current_url,
            str(self._request["token"]),
            str(self._request["attempt_id"]),
            str(self._request["run_id"]),
            experiment=self._spec.experiment or "slicelift",
            listener=self._seat.listener if self._seat else None,
        )

    def _environment(self, loopback: Loopback | None) -> dict[str, str]:
        uri = loopback.start() if loopback else ""
        variables = gang_variables(self._spec, self._request, folder=self._folder, tracking_uri=uri)
        variables |= loopback.environment() if loopback else {}
        environment = gang_environment(os.environ, variables, self._secrets)
        return with_scripts_of(environment, self._spec.python)

    def _prove_data(self, verdict: Verdict) -> Verdict:
        """A job whose data changed under it has failed, whatever its ranks say."""
        if not self._outputs.recorded:
            return verdict
        paths = data.changed(self._spec.data, self._cache)
        return data_changed(paths, verdict) if paths and verdict.status is not Status.KILLED else verdict

    def _tell(self, message: str, *, state: str = "preparing") -> None:
        """Say where the job stands, to the launcher and to whoever asks the backend."""
        if message:
            say(message)
        self._report.update(state=state, message=message, ranks=self._gang.ranks())
        with suppress(OSError):
            write_json(self._folder.state, {"state": state, "message": message})

    def _still_checks(self) -> bool:
        """Whether the gang still checks its network, before it trains."""
        begun = any(row["state"] == "running" for row in self._gang.ranks())
        self._checks = self._checks and not begun and not checking.is_over(self._folder.root)
        return self._checks

    def _note(self) -> None:
        if self._checks:
            if not self._still_checks():
                self._tell("", state="running")
            return
        free = free_bytes(self._folder.root)
        low = f"The disk of {self._folder.root} is full: {free // 1024} kB are left; metrics are thinned."
        self._was_full = self._was_full or free < _LOW_DISK_BYTES
        self._report.update(ranks=self._gang.ranks(), message=low if free < _LOW_DISK_BYTES else "")
        if self._gpus is not None:
            self._report.update(idle_minutes=self._gpus.minutes())

    def _tell_full(self, verdict: Verdict) -> Verdict:
        """A run that finished well on a full disk may lack points that nobody could count any more."""
        if verdict.message or not self._was_full:
            return verdict
        message = f"The disk of {self._folder.root} was full while the job ran; metrics may be missing."
        return replace(verdict, message=message)

    def _wants_end(self) -> bool:
        # the signal of a cancel may have come before there was a handler for it
        return bool(self._interrupted) or self._cancel.asked()

    def _check_interrupted(self) -> None:
        if self._wants_end():
            raise Interrupted

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupted = self._interrupted or time.time()
        if self._may_raise:
            self._may_raise = False
            raise Interrupted

    def _cancelled(self) -> Verdict:
        default = CANCELLED if self._cancel_asked() else "ended by SIGTERM"
        return cancelled(self._cancel.reason(default), read_object(self._folder.gang).get("exit_code"))

    def _patience(self) -> float:
        """Until when (monotonic seconds) a launcher that is away is waited for, from now on."""
        ending = self._interrupted and "grace_seconds" in self._request
        return time.monotonic() + (_LAST_WORDS_SECONDS if ending else self._patience_seconds)

    def _grace(self) -> float:
        """How long ranks may take to end. Those of a pod may save first, unless nobody wants the job any more."""
        given = GRACE_SECONDS if self._cancel_asked() else self._request.get("grace_seconds", GRACE_SECONDS)
        return self._cancel.grace_seconds(given)

    def _let_save(self) -> int | None:
        """Leave the ranks of a suspended run alone until they have saved once more, if they ever save, or the time is up.

        The gang's exit code when it ended meanwhile: 0 when it was through anyway.
        """
        seconds = self._cancel.saving_seconds()
        if seconds is None or not self._cancel.saved_since(0.0):
            return None
        until = time.monotonic() + seconds
        return self._gang.wait(
            interrupted=lambda: time.monotonic() > until or self._cancel.saving_seconds() is None,
            note=self._note,
        )

    def _cancel_asked(self) -> bool:
        return self._shipper is not None and self._shipper.cancelled.is_set()


def main(arguments: list[str]) -> None:
    """Be the one agent of the attempt, or leave at once."""
    folder = AttemptFolder(Path(arguments[-1]))
    delivering = "--deliver" in arguments
    lock = be_the_only_one(folder)
    if lock is None or (not delivering and (folder.agent.exists() or folder.exit.exists())):
        return
    # a cancel that comes before its handler stands is found in cancel.json
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    agent = begin(folder, delivering=delivering)
    if delivering:
        agent.deliver_instead()
    else:
        agent.run()


def begin(folder: AttemptFolder, *, delivering: bool = False) -> Agent:
    """Make this process the agent of the attempt in `folder`. Before it has threads, and once."""
    os.umask(0o077)
    os.chdir(folder.root)
    seat = take(os.environ)
    mounts = not delivering and enter_namespace(folder.agent_lock)
    introduce(folder)
    processes.become_subreaper()
    return Agent(folder, mounts=mounts, seat=seat)


def _interrupt_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
