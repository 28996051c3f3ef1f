"""The start of one rank: `python rank.py SCRIPT [ARGUMENT...]`. What it does is in script.py.

Started by path, so that nothing in the working folder can stand in for slicelift, whatever it is called.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python put this folder first on sys.path, where our modules would hide the script's own of the same name
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != here]
    if str(here.parents[1]) not in sys.path:
        sys.path.append(str(here.parents[1]))

    from slicelift.runtime.script import main

    main(sys.argv[1:])
