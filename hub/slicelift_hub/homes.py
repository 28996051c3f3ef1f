"""The folder of one user on this machine: their sessions' home, with something to promote at the first login."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from slicelift.errors import SliceliftError

HOMES = "homes"
DEMO = "quickstart"
REMOTE = ".dvc-remote"
_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9._]|-(?!-)){0,47}")
_LEFT_OUT = ("prepare_demo.py", "__pycache__", ".ipynb_checkpoints", "outputs", ".git")
_URL = re.compile(r"^\s*url\s*=\s*(.+?)\s*$", re.MULTILINE)
_CONFIG = f"[core]\n    analytics = false\n    remote = demo\n['remote \"demo\"']\n    url = ../{REMOTE}\n"
_NEWS = ".jupyter/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
_log = logging.getLogger(__name__)


def slug(name: str) -> str:
    """A folder's name for a user's: itself where that is plain, else cut to plain letters with a digest behind.

    Different names never give the same slug, also on a file system that ignores case.
    """
    if _PLAIN.fullmatch(name):
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32] or "user"
    return f"{plain}--{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def shipped_demo() -> Path | None:
    """The demo project of a clone; None where there is none."""
    folder = Path(__file__).resolve().parents[2] / "notebooks"
    return folder if (folder / "quickstart.ipynb").is_file() else None


def demo_remote(demo: Path) -> Path:
    """The folder that is the demo's DVC remote; it may not be made yet. Raises OSError without a `.dvc/config`."""
    match = _URL.search((demo / ".dvc" / "config").read_text(encoding="utf-8"))
    return (demo / ".dvc" / match[1]).resolve() if match else demo / REMOTE


def prepare(root: Path, name: str, *, demo: Path | None = None) -> Path:
    """The home of that user below the launcher's home `root`, made (0700) and seeded at the first call.

    A home is built beside its place and moved there whole, so that a killed hub leaves none half-filled; one that is
    there is never touched. Raises `home-unwritable` when it cannot be made.
    """
    home = root / HOMES / slug(name)
    if home.is_dir():
        return home
    partial = home.with_name(f".{home.name}.{secrets.token_hex(4)}")
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _build(partial, name, demo)
        partial.rename(home)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if home.is_dir():  # a second server of the same user was quicker
            return home
        message = f"The home of {name} cannot be made: {error.strerror or error}."
        raise SliceliftError("home-unwritable", message, f"Look at the disk below {home.parent}.") from error
    return home


def _build(home: Path, name: str, demo: Path | None) -> None:
    home.mkdir(mode=0o700)
    if demo is None:
        return
    try:
        _seed(home / DEMO, demo)
        _quiet(home)
        _commit(home / DEMO, name)
    except (OSError, ValueError, SliceliftError) as error:
        # a session without a demo is better than none
        _log.error("The new home of %s has no demo: %s", name, error)
        shutil.rmtree(home / DEMO, ignore_errors=True)


def _seed(project: Path, demo: Path) -> None:
    """The demo as a project of its own, with its data and the objects of its DVC remote."""
    shutil.copytree(demo, project, ignore=_left_out, symlinks=True)
    config = project / ".dvc" / "config"
    remote = demo_remote(demo)
    if remote.is_dir():
        shutil.copytree(remote, project / REMOTE, dirs_exist_ok=True)
    config.write_text(_CONFIG, encoding="utf-8")
    with (project / ".dvcignore").open("a", encoding="utf-8") as file:
        file.write(f"/{REMOTE}\n")
    (project / ".gitignore").write_text(f"/{REMOTE}\n.ipynb_checkpoints\n", encoding="utf-8")
    for notebook in project.glob("*.ipynb"):
        _tell_language(notebook)


def _tell_language(notebook: Path) -> None:
    """What JupyterLab writes as soon as a kernel starts: a demo that nobody changed must not count as changed."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    document.setdefault("metadata", {})["language_info"] = {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": platform.python_version(),
    }
    notebook.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _quiet(home: Path) -> None:
    """JupyterLab's question whether it may fetch news lies over the panel of everybody who is new."""
    settings = home / _NEWS
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false"}\n', encoding="utf-8")


def _left_out(folder: str, names: list[str]) -> set[str]:
    beside = ("tmp", "cache", "config.local") if Path(folder).name == ".dvc" else _LEFT_OUT
    return {name for name in names if name in beside}


def _commit(project: Path, name: str) -> None:
    """Its first commit; the identity stays in this repository, so that the user can commit at once."""
    identity = {"user.name": name, "user.email": f"{slug(name)}@localhost"}
    steps = [["init", "--quiet", "--initial-branch=main"]]
    steps += [["config", key, value] for key, value in identity.items()]
    steps += [["add", "--all"], ["commit", "--quiet", "--message", "The quickstart"]]
    # the hub's own git settings (templates, hooks, signing) are not the user's
    ours = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | ours
    for step in steps:
        done = subprocess.run(
            ["git", "-C", str(project), *step], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            message = f"git {step[0]} failed in the new home of {name}: {done.stderr.strip()[:300]}"
            raise SliceliftError("demo-failed", message, "Is git installed?")
