"""The git repository around a notebook: found, and made where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from slicelift.errors import NotFound, Refused, UserError
from slicelift.snapshot import git

_IGNORED = """\
# written by slicelift: what need not be in git and does not travel
.venv/
venv/
__pycache__/
*.pyc
.ipynb_checkpoints/
.env
outputs/
mlruns/
mlartifacts/
mlflow.db
"""

# names of files that a person seldom means to commit; the second list is what such files are shown by
_CREDENTIALS = """
.env .env.* *.env *.pem *.p12 *.pfx *.key id_rsa id_dsa id_ecdsa id_ed25519 credentials credentials*.json
client_secret*.json service-account*.json service_account*.json kaggle.json .netrc _netrc .pgpass .pypirc
.git-credentials .htpasswd
"""
_SPECIMENS = (".env.example", ".env.sample", ".env.template", ".env.dist", "example.env", "sample.env")

# for commits in a home without user.name; GIT_AUTHOR_DATE stays the clock's
IDENTITY = {
    "GIT_AUTHOR_NAME": "Slicelift",
    "GIT_AUTHOR_EMAIL": "slicelift@localhost",
    "GIT_COMMITTER_NAME": "Slicelift",
    "GIT_COMMITTER_EMAIL": "slicelift@localhost",
}


@dataclass(frozen=True, kw_only=True)
class Project:
    """A git worktree. `root` is its physical path, `head` the commit it stands on.

    `git_dir` is the worktree's own (where its index lies), `branch` is "" when HEAD is detached.
    """

    root: Path
    git_dir: Path
    head: str
    branch: str

    def relative(self, path: Path | str) -> str:
        """`path` relative to the root, POSIX style. Only the folder is resolved, never a link at the end."""
        given = Path(path)
        physical = Path(os.path.realpath(given.parent)) / given.name
        try:
            return physical.relative_to(self.root).as_posix()
        except ValueError as error:
            raise UserError(
                "outside-project",
                f"{given} is not inside the project {self.root}.",
                "Move the notebook into the repository, or promote it from its own repository.",
            ) from error


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A file that a first commit would hold."""

    path: str
    size_bytes: int


def find_project(notebook_path: Path | str) -> Project:
    """The repository that holds the notebook's folder (the innermost one). Reads only.

    Raises `UserError` with `no-git`, `no-commit`, `git-missing`, `git-dubious-ownership` or
    `git-failed`, `NotFound` with `notebook-not-found` when the folder itself does not exist.
    """
    folder = Path(notebook_path).absolute().parent
    if not folder.is_dir():
        raise NotFound(
            "notebook-not-found",
            f"There is no folder {folder}, so no notebook {Path(notebook_path).name} in it.",
            "Check the path; quote it if it has spaces.",
        )
    root, git_dir = _places(folder)
    head = git.ask(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head is None:
        raise UserError(
            "no-commit",
            f"The repository {root} has no commit yet, so there is nothing to compare the code with.",
            "Add --init-git to the promote command (it lists the files and makes the first commit), "
            "or commit yourself: git add -A && git commit.",
        )
    branch = git.ask(root, "symbolic-ref", "--quiet", "--short", "HEAD") or ""
    return Project(root=root, git_dir=git_dir, head=head, branch=branch)


def init_project(
    root: Path | str,
    *,
    limit_bytes: int | None = None,
    confirm: Callable[[Sequence[Candidate]], bool] | None = None,
) -> Project:
    """Make `root` a repository with a first commit of what it holds. Safe to repeat.

    Inside a repository that has no commit yet, that repository gets the commit; one that has commits
    is returned as it is. A .gitignore is written if there is none. `confirm` sees every file of the
    commit, largest first, before anything is hashed; False stops with `init-declined` and leaves a
    repository without commit. More than `limit_bytes` (None: as for a snapshot) stops with
    `snapshot-too-large`.
    """
    folder = Path(os.path.realpath(root))
    top = _init(folder)
    try:
        return find_project(top / "any")
    except UserError as error:
        if error.code != "no-commit":
            raise
    if not (top / ".gitignore").exists():
        (top / ".gitignore").write_text(_IGNORED, encoding="utf-8")
    held = list_first_commit(top)
    _accept(top, held, limit_bytes=limit_bytes, confirm=confirm)
    git.run(top, "add", "--all")
    git.run(top, *_commit_command(top), env=_author(top))
    return find_project(top / "any")


def list_first_commit(top: Path) -> tuple[Candidate, ...]:
    """What a first commit at `top` would hold, the largest first."""
    listed = git.run(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = [path for path in git.records(listed) if os.path.lexists(top / path)]
    found = [Candidate(path=path, size_bytes=(top / path).lstat().st_size) for path in sorted(set(paths))]
    return tuple(sorted(found, key=lambda item: -item.size_bytes))


def refuse_credentials(held: Sequence[Candidate]) -> None:
    """Raise `credentials-in-commit` when files look by their names as if they held passwords or keys."""
    found = sorted(item.path for item in held if _looks_secret(item.path.rpartition("/")[2].lower()))
    if not found:
        return
    # imported here because survey builds on this module
    from slicelift.snapshot.survey import named

    raise Refused(
        "credentials-in-commit",
        f"The first commit would hold what looks like credentials: {named(found)}. A commit keeps them for good, "
        "and every job gets a copy.",
        "List them in .gitignore and promote again (a job gets secrets by `slicelift secrets`); "
        "or add --yes to commit them all the same.",
        detail={"paths": found},
    )


def _looks_secret(name: str) -> bool:
    return name not in _SPECIMENS and any(fnmatchcase(name, pattern) for pattern in _CREDENTIALS.split())


def _places(folder: Path) -> tuple[Path, Path]:
    """Top level and git folder around `folder`."""
    answer = git.run(folder, "rev-parse", "--is-inside-work-tree", "--absolute-git-dir").decode(
        "utf-8", "surrogateescape"
    )
    inside, _, git_dir = answer.partition("\n")
    if inside != "true":
        raise UserError(
            "no-git",
            f"{folder} lies in a bare repository or inside a .git folder: there is no worktree to take.",
            "Promote a notebook from a checkout of that repository (`git clone` or `git worktree add`).",
        )
    top = git.run(folder, "rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape")
    return Path(top.removesuffix("\n")), Path(git_dir.removesuffix("\n"))


def _init(folder: Path) -> Path:
    """The top level of the repository at `folder`, made if there was none."""
    try:
        return _places(folder)[0]
    except UserError as error:
        if error.code != "no-git" or not folder.is_dir():
            raise
    git.run(folder, "init", "--quiet")
    return _places(folder)[0]


def _accept(
    top: Path,
    held: tuple[Candidate, ...],
    *,
    limit_bytes: int | None,
    confirm: Callable[[Sequence[Candidate]], bool] | None,
) -> None:
    """Refuse a first commit that is too large or that the user does not want."""
    # imported here because survey builds on this module
    from slicelift.snapshot import survey

    sizes = {item.path: item.size_bytes for item in held}
    survey.refuse_large(sizes, limit_bytes=survey.limit() if limit_bytes is None else limit_bytes)
    if confirm is not None and not confirm(held):
        raise Refused(
            "init-declined",
            f"The first commit of {len(held)} files in {top} was declined; nothing was committed.",
            "Edit .gitignore until the list is right, then try again; or commit yourself.",
        )


def _commit_command(top: Path) -> list[str]:
    subject = f"First commit of {top.name}, made by slicelift"
    return ["-c", "commit.gpgSign=false", "commit", "--quiet", "--allow-empty", "--message", subject]


def _author(top: Path) -> dict[str, str]:
    """The user's own name if git knows it, ours in an empty home."""
    return {} if git.ask(top, "config", "user.email") else IDENTITY
