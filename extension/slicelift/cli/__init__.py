"""The command line. `main` is the entry point; commands are imported only when called.

`slicelift --help` answers in about a tenth of a second, so this module and `tree` import click and nothing
else at their top.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit status (see docs/command-line.md)."""
    from slicelift.cli.faults import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
