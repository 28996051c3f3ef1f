"""What lies below the run card, in Node: curves, odd ranks, and the one event stream of a page.

Needs about 5 s: the stream's own pauses are waited for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FRONTEND = Path(__file__).parents[3] / "extension/frontend"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=FRONTEND, capture_output=True, text=True, env=environment, timeout=120)


def test_curves_ranks_and_stream(tmp_path: Path) -> None:
    sources = sorted(str(path) for path in (FRONTEND / "test").glob("*.test.ts"))
    options = [
        "--bundle",
        "--platform=node",
        "--format=esm",
        "--out-extension:.js=.mjs",
        f"--outdir={tmp_path}",
    ]
    bundled = run("node_modules/.bin/esbuild", *sources, *options)
    assert bundled.returncode == 0, bundled.stderr
    done = run("node", "--test", "--test-reporter=tap", *(str(path) for path in tmp_path.glob("*.mjs")))
    assert done.returncode == 0, done.stdout
    assert "# fail 0" in done.stdout
    assert "# pass 0" not in done.stdout
