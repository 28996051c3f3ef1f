"""The one seam between a launcher and whatever runs jobs.

A backend renders, submits, looks, cancels and reads; it keeps no state of its own beyond what it runs, so that a
restarted launcher finds everything again by handle. A backend never decides whether a job may run:
policy, queue and slots come before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slicelift.models import JobSpec, JobStatus

Manifest = dict[str, Any]
# the reason of an UNKNOWN whose handle nobody knows any more; of any other UNKNOWN the gang may well go on
GONE = "no-such-job"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What one start of a job needs beside its spec.

    `token` opens only this attempt's calls at `launcher_url`; `slice_uuid` is the leased MIG device, or None; `gpus`
    are the indexes of the whole GPUs that the gang has leased; `owner` is whose job it is.
    """

    attempt_id: str
    run_id: str
    promotion_id: str
    attempt: int
    launcher_url: str
    token: str
    slice_uuid: str | None = None
    gpus: tuple[int, ...] = ()
    owner: str = ""


def ranks_per_worker(spec: JobSpec, *, leased: bool) -> int:
    """How many ranks a worker has: one on a machine of the launcher's, one per GPU in a pod of its own."""
    return 1 if leased else max(1, spec.gpus_per_worker)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The outcome of a cancel. `gone` only after a search found nothing; else `left` names what lives and should not.

    Neither of them: ranks may still save a checkpoint, and the cancel is to be repeated.
    """

    gone: bool
    killed: int = 0
    left: tuple[str, ...] = ()


class Backend(Protocol):
    """Runs gangs. All methods block; the launcher calls them from worker threads.

    `leased` says who queues. True: the launcher leases slots, slices and GPUs, and then submits. False: it submits
    at once, and `status` is WAITING, with the reason, until the whole gang has its place.
    """

    name: str
    leased: bool

    def render(self, spec: JobSpec, attempt: Attempt) -> Manifest:
        """The dry run: everything that would be submitted, without secrets. Pure."""
        ...

    def plan(self, spec: JobSpec, attempt: Attempt) -> list[str]:
        """Sentences that a user should read before a submit, most often none. Submits nothing.

        Raises `Refused` when the submit would be refused.
        """
        ...

    def prepare(self, spec: JobSpec, attempt: Attempt) -> JobStatus | None:
        """Have done what must be done before the gang takes a place, as bringing its data where all its workers see it.

        None when it is done; else where it stands, a WAITING to be shown: ask again. Idempotent, and quick. Raises
        `SliceliftError` when it cannot be done.
        """
        ...

    def abandon(self, spec: JobSpec, attempt: Attempt) -> str:
        """Nobody wants this attempt any more, which no handle is known of: end what `prepare` has begun for it.

        The handle of what a submit has made of it all the same, as one that was cut off or refused halfway, for `cancel`
        to end and prove; "" when there is no such thing. Idempotent.
        """
        ...

    def submit(self, spec: JobSpec, attempt: Attempt) -> str:
        """Start the gang and return its handle. Idempotent on `attempt.attempt_id`.

        Raises `SliceliftError` when the start is impossible (disk full, interpreter gone); `abandon` then tells what there is.
        """
        ...

    def status(self, handle: str) -> JobStatus:
        """One look. A handle that nobody knows any more gives UNKNOWN with the reason `GONE`, never an error.

        A backend that restarts gangs by itself says so in `restarts`: the ledger makes an attempt of each.
        """
        ...

    def listen(self, changed: Callable[[str], None]) -> None:
        """From now on call `changed(handle)`, from any thread, when there is news of that handle; or never do.

        Called once, before any other method. Whoever is told asks `status`.
        """
        ...

    def capacity(self) -> Mapping[str, Any] | None:
        """What `GET /capacity` answers: queues with quota and use per resource. None when the launcher's leases tell it."""
        ...

    def cancel(self, handle: str, *, reason: str, grace_seconds: float = 10.0, saving: bool = False) -> Proof:
        """End the whole process tree and prove it. Safe to repeat, also on a job that is over.

        `saving`: the ranks may save a checkpoint first. They have the backend's own time for that, whatever `grace_seconds`;
        it returns after a second or so of it, so that a repetition without `saving` can cut it short.
        """
        ...

    def scale(self, handle: str, workers: int) -> None:
        """Let an elastic gang that is under way have that many workers from now on, of which `status` tells. Idempotent.

        Raises `Refused` where it cannot have them, `Conflict` when it is over; after `Unavailable` it may have them all the
        same.
        """
        ...

    def discard(self, handle: str, *, keep: Mapping[str, bool] | None = None) -> bool:
        """Free what a finished attempt still holds on disk once its outputs and logs are in the store.

        True when nothing is left but what `keep` names, also for a handle that nobody knows any more; False when
        it cannot be freed yet (it runs or delivers): ask again later. Idempotent.
        """
        ...


class Enclosure(Protocol):
    """Has the processes of a job run as its owner's user of the system, apart from everyone else's."""

    @property
    def address_file(self) -> Path:
        """A file that a job may read and that says `{url}` of the launcher."""
        ...

    def cache(self, owner: str) -> Path:
        """The folder of that owner's data. Pure."""
        ...

    def give(self, owner: str, folder: Path) -> None:
        """Make this folder, with all in it, the owner's; it is made if missing. Idempotent."""
        ...

    def agent_command(
        self,
        owner: str,
        command: Sequence[str],
        *,
        writable: Sequence[Path],
        read_only: Sequence[Path],
        ranks: bool,
    ) -> list[str]:
        """`command` (an agent's) enclosed: with `writable` only, and with `ranks` a seat for its gang.

        The seat (`slicelift.runtime.seat`) is where `read_only`, some of `writable`, cannot be written to.
        """
        ...
