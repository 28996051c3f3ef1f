"""Everything an agent does before its gang starts: secrets, snapshot, data."""

from __future__ import annotations

import os
import socket
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slicelift.errors import Refused, SliceliftError, Unavailable
from slicelift.models import JobSpec
from slicelift.runtime import data
from slicelift.runtime.delivery import patiently
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.link import Link
from slicelift.runtime.unpack import unpack

# a pod's name is known as soon as it has an address; pods of a gang get theirs together
NAME_SECONDS = 300.0
_NAME_PAUSE_SECONDS = 0.5
# a tar that is broken in itself is asked for again this often: a cut connection looks the same
_TRIES = 5


def make_rooms(folder: AttemptFolder, checkpoints: Path) -> None:
    """The folders that ranks write into. Raises OSError when the disk is full."""
    folder.reserve()
    for room in (*folder.rooms(), checkpoints):
        room.mkdir(mode=0o700, parents=True, exist_ok=True)


def fetch_secrets(spec: JobSpec, link: Link, *, until: float) -> dict[str, str]:
    """The values of the spec's secrets, of those that are set; waits for a launcher that is away.

    Raises SliceliftError when it stays away.
    """
    found: dict[str, str] = {}
    if spec.secrets:
        _insist(lambda: found.update(link.get_json("secrets")), until=until)
    return {str(name): str(value) for name, value in found.items()}


def check_secrets(spec: JobSpec, found: Mapping[str, str]) -> None:
    """Raises Refused "secret-missing" when one of the spec's secrets is not set."""
    missing = sorted(set(spec.secrets) - set(found))
    if missing:
        raise Refused(
            "secret-missing",
            f"The job asks for secrets that are not in your store: {', '.join(missing)}.",
            f"Set them with `slicelift secrets set {missing[0]}`, then `slicelift retry`.",
        )


def fetch_snapshot(spec: JobSpec, link: Link, workspace: Path, *, until: float) -> None:
    """Unpack the snapshot into the workspace; waits for a launcher that is away.

    Raises Refused "snapshot-unsafe", "snapshot-broken" or "snapshot-incomplete", OSError on a full disk.
    """
    tries = 0

    def once() -> None:
        nonlocal tries
        tries += 1
        try:
            with link.stream("snapshot") as stream:
                unpack(stream, workspace)
        except tarfile.TarError as error:
            if tries < _TRIES:
                raise Unavailable("snapshot-broken", str(error)) from error
            raise Refused(
                "snapshot-broken",
                f"The snapshot {spec.snapshot_id} arrived {tries} times and could not be unpacked: {error}.",
                "Promote the notebook again; if it repeats, look into the launcher's log.",
            ) from error

    _insist(once, until=until)
    if not (workspace / spec.script).is_file():
        raise Refused(
            "snapshot-incomplete",
            f"The snapshot {spec.snapshot_id} does not hold the script {spec.script}.",
            "Promote the notebook again.",
        )
    (workspace / spec.cwd).mkdir(parents=True, exist_ok=True)


def lay_out_data(
    spec: JobSpec,
    cache: Path,
    folder: AttemptFolder,
    *,
    secrets: Mapping[str, str],
    mounts: bool,
    say: Callable[[str], None],
) -> None:
    """Fetch what the cache lacks and show all data at its place. The remotes' keys may be among the secrets."""
    environment = {**os.environ, **secrets, "PYTHONPATH": str(folder.runtime)}
    data.prepare(spec.data, cache, folder, environment=environment, say=say)
    data.show(spec.data, cache, folder.workspace, mounts=mounts)


def check_interpreter(spec: JobSpec) -> None:
    """Raises Refused "interpreter-missing" when the kernel's Python is gone since the promotion."""
    if not os.access(spec.python, os.X_OK):
        raise Refused(
            "interpreter-missing",
            f"The job's Python interpreter {spec.python} does not exist or cannot be run.",
            "Choose an installed kernel for the notebook and promote it again.",
        )


def wait_for_name(name: str, *, seconds: float = NAME_SECONDS, say: Callable[[str], None]) -> None:
    """Return when `name`, of node 0, has an address. Raises SliceliftError "master-unknown" when it gets none in time."""
    until, told = time.monotonic() + seconds, False
    while not _resolves(name):
        if time.monotonic() > until:
            raise SliceliftError(
                "master-unknown",
                f"The name of the gang's first worker, {name}, had no address for {seconds:.0f} s.",
                "Look whether the cluster's DNS works (kubectl -n kube-system get pods), then `slicelift retry`.",
            )
        if not told:
            say("Waiting for the other workers' names")
        told = True
        time.sleep(_NAME_PAUSE_SECONDS)


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _insist(work: Callable[[], None], *, until: float) -> None:
    if not patiently(work, until=until):
        waited = "no answer in time" if time.monotonic() > until else "no answer"
        raise SliceliftError(
            "launcher-away",
            f"The job could not start: the launcher gave {waited}.",
            "Start it with `make up`, then `slicelift retry`.",
        )
