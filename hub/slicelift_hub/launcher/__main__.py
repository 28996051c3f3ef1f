"""`python -m slicelift_hub.launcher [--port N] [--keep-jobs] ...`: the launcher in the foreground.

When it cannot come up it says why in two lines, and the last line of stderr is the error as JSON for whoever
started it.
"""

from __future__ import annotations

import json
import sys

from slicelift.errors import SliceliftError

from slicelift_hub.launcher.app import Launcher


def main() -> int:
    """Exit status 0 after an ordered stop, 1 when the launcher cannot come up."""
    launcher = Launcher()
    try:
        launcher.initialize(sys.argv[1:])
        launcher.start()
    except SliceliftError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n{json.dumps(error.to_dict())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
