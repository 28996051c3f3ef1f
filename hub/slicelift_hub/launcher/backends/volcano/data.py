"""The shared cache of data on a cluster: whose part of it is where, and what a gang sees of it. Pure.

The claim holds a folder for each owner, with DVC's objects and the views of its data sets. The owner's warm-up has that
folder, writable, and the owner's gangs have it read-only. No path below it is ever a `subPath`: a kubelet follows links
anywhere within a volume, and whoever writes below a folder could lay one to somebody else's.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from slicelift.errors import Refused
from slicelift.models import DataRef, JobSpec

from slicelift_hub.launcher.backends.volcano.names import owner_hash
from slicelift_hub.launcher.backends.volcano.sites import Site

DATA = "/slicelift/data"
# of a Job that warms, and of its pods: which data of whom
DATA_LABEL = "slicelift.io/data"
VOLUME = "data"
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")


def data_sets(spec: JobSpec) -> list[DataRef]:
    """What a job needs, each version once. Raises Refused "bad-data": the md5 becomes part of a path."""
    found: dict[str, DataRef] = {}
    for ref in spec.data:
        found.setdefault(ref.md5, ref)
    for md5 in found:
        if not _MD5.fullmatch(md5):
            hint = "Track the data again with `dvc add`, which makes an md5."
            raise Refused("bad-data", f"{md5[:80]!r} is not the md5 of data.", hint)
    return list(found.values())


def data_key(owner: str, ref: DataRef) -> str:
    """A label for one version of some data of one owner."""
    return hashlib.sha256(f"{owner_hash(owner)}/{ref.md5}".encode()).hexdigest()[:32]


def gang_volumes(spec: JobSpec, site: Site) -> list[dict[str, Any]]:
    """Of a worker's pod. Without a claim, an empty one that each worker fills by itself."""
    if not site.data_claim or not data_sets(spec):
        return [{"name": VOLUME, "emptyDir": {}}]
    return [claim_volume(VOLUME, site.data_claim, read_only=True)]


def gang_mounts(spec: JobSpec, owner: str, site: Site) -> list[dict[str, Any]]:
    """Of a worker's container."""
    mount = {"name": VOLUME, "mountPath": DATA}
    if not site.data_claim or not data_sets(spec):
        return [mount]
    return [{**mount, "subPath": owner_hash(owner), "readOnly": True}]


def claim_volume(name: str, claim: str, *, read_only: bool) -> dict[str, Any]:
    """A volume of a pod. Claims stand in the pod, not in the job's own volumes.

    There a missing claim ends the job after minutes, silently.
    """
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}
