"""`python tests/cluster/bed up|down|status|build|...`: see command.py."""

from __future__ import annotations

import sys
from pathlib import Path

# a folder given to python becomes the first of sys.path, where our own module names would hide others
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bed.command import main  # noqa: E402  # only now it is found

sys.exit(main(sys.argv[1:]))
