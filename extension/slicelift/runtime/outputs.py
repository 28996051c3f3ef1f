"""Where the training API writes outside a job: below ./outputs, kept out of git and so of later snapshots."""

from __future__ import annotations

from pathlib import Path


def output_folder(name: str) -> Path:
    """`./outputs/<name>`, made if missing, ignored by git from the start."""
    folder = Path.cwd() / "outputs" / name
    folder.mkdir(parents=True, exist_ok=True)
    rule = folder / ".gitignore"
    if not rule.exists():
        rule.write_text("*\n", encoding="utf-8")
    return folder
