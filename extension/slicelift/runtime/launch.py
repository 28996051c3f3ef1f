"""Command line and environment of a gang: pure, so that the dry run shows exactly what the agent starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicelift.models import JobSpec
from slicelift.runtime.folder import AttemptFolder
from slicelift.runtime.network import VARIABLE as CHECK
from slicelift.runtime.nodes import Place, place_of_request
from slicelift.runtime.processes import MARKER
from slicelift.runtime.world import ELASTIC, GRACE

GRACE_SECONDS = 10.0
# what the launcher's own process may carry and no job must inherit: its rights, its tracker, its modules
_PRIVATE = ("SLICELIFT_", "JUPYTERHUB_", "JPY_", "MLFLOW_", "TORCHELASTIC_", "CONFIGPROXY_")
_NAMES = {
    "JUPYTER_TOKEN",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONSAFEPATH",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
}


_PLAIN = {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "SSL_CERT_FILE"}


def gang_command(spec: JobSpec, folder: AttemptFolder, place: Place | None = None) -> list[str]:
    """How the gang, or its part at `place`, is started in the kernel's interpreter.

    `-P` keeps the notebook's folder from shadowing us.
    """
    script = folder.workspace / spec.script
    here = place or Place(nproc=spec.workers)
    return [spec.python, "-P", "-m", "slicelift.runtime.gang", *here.options(), str(script)]


def gang_variables(
    spec: JobSpec, request: Mapping[str, Any], *, folder: AttemptFolder, tracking_uri: str
) -> dict[str, str]:
    """The variables a gang gets beside what it inherits; secrets come on top. `request` is agent.json."""
    variables = {
        "PYTHONPATH": str(folder.runtime),
        "PYTHONUNBUFFERED": "1",
        MARKER: str(request["attempt_id"]),
        "SLICELIFT_RUN_ID": str(request["run_id"]),
        "SLICELIFT_PROMOTION_ID": str(request["promotion_id"]),
        "SLICELIFT_ATTEMPT_DIR": str(folder.root),
        "SLICELIFT_CHECKPOINT_DIR": str(request["checkpoints"]),
        "SLICELIFT_PARAMETERS": repr(dict(spec.parameters)),
        "SLICELIFT_MODEL_NAME": spec.model_name,
        "MLFLOW_TRACKING_URI": tracking_uri,
    }
    variables |= _of_place(place_of_request(request, spec), request)
    if request.get("check"):
        variables[CHECK] = json.dumps(request["check"])
    devices = [request["slice_uuid"]] if request.get("slice_uuid") else request.get("gpus") or []
    if devices:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the indexes are NVML's
    return variables


def _of_place(place: Place, request: Mapping[str, Any]) -> dict[str, str]:
    """What differs between one machine and a node among others, whose network the preset names, and elastic gangs."""
    variables = {"GLOO_SOCKET_IFNAME": "lo"} if place.alone else {}
    if "grace_seconds" in request:
        variables[GRACE] = str(request["grace_seconds"])
    if place.elastic:
        variables[ELASTIC] = "1"
        # a survivor would keep the address of a store that died with its node
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return variables


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that a job may see."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NAMES and not name.startswith(_PRIVATE)
    }


def plain(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that another user's job may see: nothing that could be a key of an admin's."""
    return {
        name: value
        for name, value in environment.items()
        if name in _PLAIN or name.startswith(("LC_", "OMP_", "NCCL_", "NVIDIA_"))
    }


def gang_environment(
    base: Mapping[str, str], variables: Mapping[str, str], secrets: Mapping[str, str]
) -> dict[str, str]:
    """What the gang's process is started with. One thread per rank unless the launcher's environment says else."""
    return {"OMP_NUM_THREADS": "1", **inherited(base), **secrets, **variables}


def with_scripts_of(environment: dict[str, str], python: str) -> dict[str, str]:
    """Put the interpreter's own folder first on PATH, as in an activated environment: `!pip` means its pip."""
    path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {**environment, "PATH": f"{Path(python).parent}:{path}"}
