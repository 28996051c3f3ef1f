"""The demo as a person's project, for the tiers that look at the platform from outside."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEMO = (
    "quickstart.ipynb",
    "prepare_demo.py",
    ".dvc/config",
    ".dvc/.gitignore",
    ".dvcignore",
    "data/digits.dvc",
    "data/.gitignore",
)


def make_project(root: Path) -> Path:
    """The demo in a git repository of its own, data written and pushed."""
    for name in DEMO:
        (root / "notebooks" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "notebooks" / name, root / "notebooks" / name)
    (root / ".gitignore").write_text(".build/\noutputs/\n.ipynb_checkpoints/\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "demo"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *command], cwd=root, check=True
        )
    subprocess.run([sys.executable, "notebooks/prepare_demo.py"], cwd=root, check=True, capture_output=True)
    return root
