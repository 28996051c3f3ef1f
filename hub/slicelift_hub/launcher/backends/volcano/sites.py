"""What an admin has decided for all jobs of a cluster, as the renderers need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Site:
    """`namespace` may hold `{owner}`. Claims are names of PersistentVolumeClaims in it, "" for none.

    Data is fetched in `data_image` ("": the job's own), with `data_memory` and in `data_hours` at most. `volumes` and
    `mounts` go into every pod as they are; `uid` None leaves the user to the image; `runtime` is the ConfigMap with what
    starts a job, and `interface` the network interface that ranks talk on. `network_policy`: Volcano closes a gang's pods to
    all others. Pods wait `patience_seconds` for a launcher that is away, before their start and after their end.
    """

    namespace: str = "slicelift"
    image: str = ""
    checkpoints_claim: str = ""
    data_claim: str = ""
    data_image: str = ""
    data_memory: str = "2Gi"
    data_hours: float = 12.0
    uid: int | None = 1000
    volumes: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    interface: str = "eth0"
    network_policy: bool = False
    keep_seconds: int = 604_800
    patience_seconds: int = 1800
    runtime: str = "slicelift-runtime"
