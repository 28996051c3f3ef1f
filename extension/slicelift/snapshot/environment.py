"""Whether the kernel's own environment can run what is asked of it."""

from __future__ import annotations

import re

from slicelift.errors import Refused
from slicelift.models import Environment

# the interpreters that the part of slicelift that travels into a job is tested with
OLDEST, NEWEST = (3, 11), (3, 13)


def check(environment: Environment, *, workers: int) -> None:
    """Raise `Refused` with `python-unsupported`, or `torch-missing` for a gang without torch. Pure."""
    _check_python(environment)
    if workers > 1 and "torch" not in environment.packages:
        raise Refused(
            "torch-missing",
            f"A gang of {workers} workers was asked for, but torch, which starts and joins them, is not "
            f"installed for {environment.python}, the interpreter of the notebook's kernel.",
            f"Install it there: {environment.python} -m pip install torch; or choose a kernel that has it "
            "(--python); or run with --workers 1, which needs no torch.",
        )


def _check_python(environment: Environment) -> None:
    found = re.match(r"(\d+)\.(\d+)", environment.python_version)
    if found and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    raise Refused(
        "python-unsupported",
        f"The notebook's kernel runs on Python {environment.python_version or 'of unknown version'} "
        f"({environment.python}); jobs run on {oldest} to {newest}.",
        f"Choose another kernel in the notebook, or name an interpreter: --python /path/to/python{newest}.",
    )
