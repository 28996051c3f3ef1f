"""Real git repositories in temporary folders, an empty home, a cache of their own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slicelift.models import Environment, LinePlace, Script
from slicelift.snapshot import Project, find_project


class Repo:
    """A repository and short hands for what a user does in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def git(self, *args: str) -> str:
        identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        done = subprocess.run(
            ["git", "-C", str(self.root), *identity, *args], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, path: str, content: str | bytes = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def commit(self, text: str = "work") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", text)
        return self.git("rev-parse", "HEAD").strip()

    def project(self, notebook: str = "nb.ipynb") -> Project:
        return find_project(self.root / notebook)

    def state(self) -> dict[str, object]:
        """What a promotion must leave as it was."""
        git_dir = Path(self.git("rev-parse", "--absolute-git-dir").strip())
        files = [path for path in git_dir.rglob("*") if path.is_file() and "objects" not in path.parts]
        return {
            "status": self.git("--no-optional-locks", "status", "--porcelain=v2", "--ignored", "-z"),
            "git": {
                str(path): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in files
                if "slicelift" not in path.relative_to(git_dir).parts
            },
            "worktree": {
                str(path): path.lstat().st_mtime_ns
                for path in self.root.rglob("*")
                if ".git" not in path.relative_to(self.root).parts
            },
        }

    def tree(self, tree: str) -> dict[str, str]:
        """path -> mode of a tree."""
        listed = self.git("ls-tree", "-r", "-z", tree)
        rows = [row.partition("\t") for row in listed.split("\0") if row]
        return {path: meta.split()[0] for meta, _, path in rows}

    def blob(self, tree: str, path: str) -> bytes:
        done = subprocess.run(
            ["git", "-C", str(self.root), "cat-file", "blob", f"{tree}:{path}"],
            capture_output=True,
            check=True,
        )
        return done.stdout


@pytest.fixture(autouse=True, scope="session")
def _own_dvc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """DVC keeps its site cache out of the home, and asks the network for news of itself."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("dvc")
        for name in ("SITE_CACHE_DIR", "GLOBAL_CONFIG_DIR", "SYSTEM_CONFIG_DIR"):
            patch.setenv(f"DVC_{name}", str(folder / name.lower()))
        patch.setenv("DVC_TEST", "true")
        yield


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[..., Repo]:
    """A repository with one commit; keywords are not needed: files come as path -> content."""

    def make(name: str = "project", files: dict[str, str] | None = None) -> Repo:
        repo = Repo(tmp_path / name)
        repo.root.mkdir(parents=True)
        repo.git("init", "--quiet", "--initial-branch=main")
        for path, content in {"nb.ipynb": "{}", **(files or {})}.items():
            repo.write(path, content)
        repo.commit()
        return repo

    return make


@pytest.fixture
def repo(make_repo: Callable[..., Repo]) -> Repo:
    return make_repo(files={"lib/model.py": "x = 1\n", ".gitignore": "*.log\n"})


@pytest.fixture
def script() -> Script:
    return Script(source="print('hi')\n", places=(LinePlace(cell=0, line=1),))


@pytest.fixture
def environment() -> Environment:
    return Environment(
        python="/usr/bin/python3",
        python_version="3.12.3",
        platform="linux-x86_64",
        packages={"torch": "2.6.0", "numpy": "2.1.0"},
    )
