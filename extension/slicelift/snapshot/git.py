"""How git is called: as a process, deaf to the caller's environment, its complaints translated.

Nothing here touches the user's index, HEAD or worktree by itself; whoever writes names a temporary
index. Output is bytes and always asked for with `-z` where paths are in it, so spaces, newlines and
Chinese characters survive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from slicelift.errors import Refused, SliceliftError, Unavailable, UserError

# hooks, monitors and conversions that ask back would let a snapshot have effects or fail on a question
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.splitIndex=false",
    "core.safecrlf=false",
    "core.logAllRefUpdates=false",
    "gc.auto=0",
    "i18n.commitEncoding=UTF-8",
)

# set when slicelift itself is started from a git hook or alias: they would point at another index
_FOREIGN = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_LITERAL_PATHSPECS",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
    "GIT_TRACE",
)


def run(
    folder: Path,
    *args: str,
    stdin: bytes = b"",
    index: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> bytes:
    """The standard output of `git <args>` in `folder`. `index` replaces the user's index.

    Raises `UserError` with `git-missing`, `no-git`, `git-dubious-ownership` or `git-failed`, and
    `Unavailable` with `disk-full`.
    """
    done = _process(folder, args, stdin=stdin, environment=_environment(index, env))
    if done.returncode:
        raise translate(folder, args, done.stderr.decode("utf-8", "replace").strip())
    return done.stdout


def ask(folder: Path, *args: str) -> str | None:
    """One line of an answer, or None when git says no (a ref that does not exist)."""
    done = _process(folder, args, stdin=b"", environment=_environment(None, None))
    return None if done.returncode else done.stdout.decode("utf-8", "surrogateescape").strip("\n")


def start_batch(folder: Path, oids: list[str]) -> subprocess.Popen[bytes]:
    """`git cat-file --batch` over these objects, answering on its standard output in this order.

    The list goes in through a file and not a pipe: with both pipes full each side would wait for the other.
    Raises `git-missing`, and `Unavailable` with `disk-full` when the temporary folder is full.
    """
    # kept out of module start: only an upload and a cold cache come here
    import tempfile

    with room_on_disk(), tempfile.TemporaryFile() as wanted:
        wanted.write("".join(f"{oid}\n" for oid in oids).encode())
        wanted.seek(0)
        try:
            return subprocess.Popen(
                _command(folder, ("cat-file", "--batch", "--buffer")),
                stdin=wanted,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(None, None),
            )
        except FileNotFoundError as error:
            raise _missing() from error


@contextlib.contextmanager
def room_on_disk() -> Iterator[None]:
    """Our own files on a full disk raise the same as git's: `Unavailable` with `disk-full`."""
    try:
        yield
    except OSError as error:
        # a disk that is full before Python has chosen its temporary folder has it find none at all
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and "temporary directory" not in str(error):
            raise
        raise _full(str(error)) from error


def records(output: bytes) -> Iterator[str]:
    """The NUL-separated records of a `-z` answer; bytes that are no UTF-8 become surrogates."""
    for record in output.split(b"\0"):
        if record:
            yield record.decode("utf-8", "surrogateescape")


def encoded(lines: list[str]) -> bytes:
    """The inverse of `records`: what a `-z --stdin` wants to read."""
    return b"".join(line.encode("utf-8", "surrogateescape") + b"\0" for line in lines)


def translate(folder: Path, args: tuple[str, ...], complaint: str) -> SliceliftError:
    """Git's own words as one of our errors."""
    if "not a git repository" in complaint:
        return UserError(
            "no-git",
            f"A promotion needs a git repository to take the code from; {folder} is in none.",
            "Add --init-git to the promote command (it makes one and commits what is there), "
            "or run `git init` and a first commit yourself.",
        )
    if "dubious ownership" in complaint:
        return UserError(
            "git-dubious-ownership",
            f"git refuses to read the repository around {folder}: another user owns its folder.",
            f"If you trust it: git config --global --add safe.directory {_owned(complaint) or folder}",
        )
    if "No space left on device" in complaint or "Disk quota exceeded" in complaint:
        return _full(_last(complaint))
    if "Permission denied" in complaint:
        return Refused(
            "file-unreadable",
            f"git may not read a file that would travel: {_last(complaint)}.",
            "Make it readable, or list it in .gitignore or .sliceliftignore.",
        )
    return UserError(
        "git-failed",
        f"`git {args[0]}` failed in {folder}: {complaint or 'it gave no reason'}.",
        "Run `git status` there: if it fails as well, mend the repository first (`git fsck` helps).",
    )


def _process(
    folder: Path, args: tuple[str, ...], *, stdin: bytes, environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            _command(folder, args), input=stdin, capture_output=True, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise _missing() from error


def _command(folder: Path, args: tuple[str, ...]) -> list[str]:
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    return ["git", "-C", os.fspath(folder), *settings, *args]


def _environment(index: Path | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    """The caller's environment without another repository in it, git's messages in English."""
    ours = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    ours |= {
        "LC_ALL": "C.UTF-8",
        "LANGUAGE": "",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }
    if index is not None:
        ours["GIT_INDEX_FILE"] = os.fspath(index)
    return ours | dict(extra or {})


def _full(what: str) -> Unavailable:
    return Unavailable(
        "disk-full",
        f"The disk is full, so the snapshot could not be written ({what}).",
        "Free some space on the project's disk and in the temporary folder, then promote again.",
    )


def _missing() -> UserError:
    return UserError(
        "git-missing",
        "A promotion takes the code through git, and no `git` command was found on PATH.",
        "Install it (Debian: apt-get install git; conda: conda install git) and promote again.",
    )


def _owned(complaint: str) -> str:
    """The folder that git names in "detected dubious ownership in repository at '<folder>'"."""
    _, found, rest = complaint.partition("repository at '")
    return rest.partition("'")[0] if found else ""


def _last(complaint: str) -> str:
    """The line that names the file: git's first of several."""
    return complaint.splitlines()[0].removeprefix("error: ").removeprefix("fatal: ")
