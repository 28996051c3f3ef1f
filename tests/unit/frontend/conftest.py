"""TypeScript in Node: bundled by esbuild, then run by the node that built the front end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FRONTEND = Path(__file__).parents[3] / "extension/frontend"


def run(*command: str) -> str:
    """The output of a program of the front end's own `node_modules`, or of its node."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=FRONTEND, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def node() -> Callable[..., str]:
    """Runs node in the front end's folder; its output."""
    return lambda *arguments: run("node", *arguments)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Path]]:
    """Bundles TypeScript sources, each into one module."""

    def bundled(*sources: Path) -> list[Path]:
        place = tmp_path_factory.mktemp("bundle")
        options = [
            "--bundle",
            "--platform=node",
            "--format=esm",
            "--log-level=error",
            "--out-extension:.js=.mjs",
        ]
        run("node_modules/.bin/esbuild", *map(str, sources), *options, f"--outdir={place}")
        return sorted(place.rglob("*.mjs"))

    return bundled


@pytest.fixture(scope="session")
def answered(bundle: Callable[..., list[Path]]) -> Callable[..., Any]:
    """What a program beside the tests prints as JSON, given one value on its command line."""

    def answer(name: str, given: object) -> Any:
        (program,) = bundle(Path(__file__).with_name(name))
        asked = program.with_suffix(".json")
        asked.write_text(json.dumps(given), encoding="utf-8")
        return json.loads(run("node", str(program), str(asked)))

    return answer
