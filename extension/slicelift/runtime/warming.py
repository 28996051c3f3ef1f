"""What the container of a warm-up runs: `python -P -m slicelift.runtime.warming`, with the runtime's archive on PYTHONPATH.

One version of some data comes into the shared cache of its owner, which gangs then mount read-only. The exit code tells
the cluster whether another try can help; the last word lies where the launcher finds it, in the termination message.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from slicelift.errors import SliceliftError
from slicelift.models import DataRef, JobSpec, from_dict
from slicelift.runtime import preparation, warmup
from slicelift.runtime.link import Link
from slicelift.runtime.masking import mask
from slicelift.runtime.verdict import HOPELESS

_AGAIN = 1
_HOPELESS_CODES = frozenset(
    {
        "data-not-in-remote",
        "data-corrupt-in-remote",
        "data-remote-unseen",
        "data-unsafe",
        "secret-missing",
        "dvc-missing",
        "disk-full",
    }
)
# how long the keys of a remote are waited for, from a launcher that is away
_PATIENCE_SECONDS = 1800.0
_MOUNT_IT = (
    "Use a remote that pods reach, or ask an admin to mount the folder into them at this path "
    "(c.Volcano.volumes, docs/data-on-a-cluster.md)."
)
_WORDS = {"code": 100, "message": 2400, "hint": 600}


def main() -> int:
    """Warm the reference of the request; the container's exit code."""
    # the first process of a container is not ended by a signal that it does not handle
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    os.umask(0o022)
    root = Path(os.environ.get("SLICELIFT_POD_ROOT", "/slicelift"))
    keys: dict[str, str] = {}
    try:
        request = json.loads((root / "request" / "warmup.json").read_bytes())
        keys.update(_fetch_keys(request))
        os.environ.update(keys)
        ref = from_dict(DataRef, request["ref"])
        warmup.warm(
            ref, root / "data", root / "scratch" / "dvc", say=lambda text: _say(mask(text, keys.values()))
        )
    except SliceliftError as error:
        return _fail(error, keys.values())
    except ImportError as error:
        return _fail(_no_dvc(error), keys.values())
    except OSError as error:
        return _fail(warmup.disk_error(error, root / "data"), keys.values())
    return 0


def _fetch_keys(request: dict[str, Any]) -> dict[str, str]:
    """The secrets of the job, among which the keys of its remotes may be."""
    spec = from_dict(JobSpec, request["spec"])
    found = preparation.fetch_secrets(spec, Link(request), until=time.monotonic() + _PATIENCE_SECONDS)
    preparation.check_secrets(spec, found)
    return found


def _no_dvc(error: ImportError) -> SliceliftError:
    return SliceliftError(
        "dvc-missing",
        f"The image in which data is fetched lacks a package: {error}.",
        "Ask an admin to name an image with Python and DVC: c.Volcano.data_image (docs/data-on-a-cluster.md).",
    )


def _fail(error: SliceliftError, keys: Iterable[str]) -> int:
    if error.code == "data-remote-unseen":
        # that hint is for jobs of one machine
        error = SliceliftError(error.code, error.message, _MOUNT_IT)
    code = HOPELESS if error.code in _HOPELESS_CODES else _AGAIN
    words = {name: mask(getattr(error, name), keys)[:most] for name, most in _WORDS.items()}
    _say(f"{words['code']}: {words['message']}")
    log = Path("/dev/termination-log")
    with suppress(OSError):
        if log.exists():
            log.write_text(json.dumps(words), encoding="utf-8")
    return code


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
