"""`python -m slicelift`: the command line where no script is on the PATH."""

from __future__ import annotations

from slicelift.cli import main

if __name__ == "__main__":
    main()
