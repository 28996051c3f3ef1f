"""Sending what a job leaves: files under ./outputs while it runs and at its end, models once it has finished."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from slicelift.errors import NotFound, SliceliftError, Unavailable
from slicelift.models import SnapshotFile, to_dict
from slicelift.runtime.folder import read_object, write_json
from slicelift.runtime.link import Link
from slicelift.runtime.shipping import say

EVERY_SECONDS = 30.0
_ROUNDS = 5
# a file that was written to this short ago may not be finished
_QUIET_SECONDS = 2.0
# the output that names those that are none, and how many it names
LEFT_OUT = "left-out-by-slicelift.txt"
_MOST_NAMED = 1000
_KINDS = {
    stat.S_IFLNK: "a link; copy what it leads to",
    stat.S_IFIFO: "a pipe, not a file",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFBLK: "a device, not a file",
    stat.S_IFCHR: "a device, not a file",
}

_LEFT_OUT_HEAD = "These lay under ./outputs when the job ended, and are no outputs of the run:"

Look = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What lies below a folder, `path` relative to it; `why` it cannot be sent, "" for a plain file."""

    path: str
    place: Path
    look: Look
    why: str = ""


class Outputs:
    """Files below one folder. What was there before the job, and links, are no outputs of it.

    What the job left and did not become an output is listed, with the reason, in one of the name `LEFT_OUT`.
    `before` is where that is kept, for an agent that delivers in another one's place; `below` is the folder that they
    get at the launcher: nodes that share no disk must not write over each other's files.
    """

    def __init__(self, folder: Path, before: Path, *, below: str = "") -> None:
        self._folder = folder
        self._below = f"{below}/" if below else ""
        self._before = before
        # path -> (size, mtime) as it was before the job, or when it was sent
        self._sent = {path: (int(look[0]), int(look[1])) for path, look in read_object(before).items()}
        self._seen: dict[str, Look] = {}
        self._refused: dict[str, tuple[Look, str]] = {}

    @property
    def recorded(self) -> bool:
        """True once a job may have started."""
        return self._before.exists()

    def record(self) -> None:
        """Take what is there now as no output of the job."""
        self._sent = {entry.path: entry.look for entry in _walk(self._folder)}
        write_json(self._before, self._sent)

    def send(self, link: Link, *, final: bool) -> None:
        """Send what is new: all of it when `final`, else what two looks in a row found the same.

        Raises Unavailable and NotFound as `Link` does; a file that the launcher refuses is named in agent.log.
        """
        for path, place, look in _plain_files(self._folder):
            known = look in (self._sent.get(path), self._refused.get(path, (None, ""))[0])
            if known or not (final or self._is_quiet(path, look)):
                continue
            try:
                self._put(link, path, place=place)
                self._sent[path] = look
            except FileNotFoundError:
                continue
            except (Unavailable, NotFound):
                raise
            except (SliceliftError, OSError) as refusal:
                self._refused[path] = look, str(refusal)
                say(f"the output {path!r} stays here, it could not be sent: {refusal}")
        if final:
            self._tell_left_out(link)

    def _tell_left_out(self, link: Link) -> None:
        odd = [each for each in _walk(self._folder) if each.why and self._sent.get(each.path) != each.look]
        lines = [f"{each.path!r}: {each.why}" for each in odd]
        lines += [f"{path!r}: {why}" for path, (_, why) in self._refused.items() if path != LEFT_OUT]
        if len(lines) > _MOST_NAMED:
            lines[_MOST_NAMED:] = [f"and {len(lines) - _MOST_NAMED} more"]
        note = self._before.with_name(LEFT_OUT)
        try:
            if lines:
                note.write_text("\n".join([_LEFT_OUT_HEAD, *lines, ""]), "utf-8", "backslashreplace")
                self._put(link, LEFT_OUT, place=note)
        except (Unavailable, NotFound):
            raise
        except (SliceliftError, OSError) as refusal:
            say(f"these outputs stay here, which could not be told: {lines[:20]}: {refusal}")

    def _is_quiet(self, path: str, look: Look) -> bool:
        before, self._seen[path] = self._seen.get(path), look
        return before == look and time.time() - look[1] / 1e9 > _QUIET_SECONDS

    def _put(self, link: Link, path: str, *, place: Path) -> None:
        name = quote(os.fsencode(self._below + path), safe="/")
        link.put_file(f"outputs/{name}?sha256={sha256_of(place)}", place)


class Watch(threading.Thread):
    """Sends outputs every 30 s while the job runs; a launcher that is away is tried again the next time."""

    def __init__(self, outputs: Outputs, link: Link, *, every_seconds: float = EVERY_SECONDS) -> None:
        super().__init__(name="outputs", daemon=True)
        self._outputs = outputs
        self._link = link
        self._every_seconds = every_seconds
        self._over = threading.Event()

    def run(self) -> None:
        """The thread's loop."""
        while not self._over.wait(self._every_seconds):
            try:
                self._outputs.send(self._link, final=False)
            except (SliceliftError, OSError):
                continue

    def finish(self) -> None:
        """End after the file that is just being sent."""
        self._over.set()
        self.join()


def send_models(folder: Path, link: Link) -> None:
    """Register the complete models below `folder`, of several with one name the last. Idempotent.

    Raises Unavailable and NotFound as `Link` does.
    """
    for model in _last_of_each_name(folder):
        try:
            _send_model(model, link)
        except (Unavailable, NotFound):
            raise
        except (SliceliftError, OSError) as refusal:
            say(f"the model {model.name!r} could not be registered: {refusal}")


def patiently(work: Callable[[], None], *, until: float) -> bool:
    """Do `work` again while the launcher is away; False when it is given up at `until` (monotonic seconds)."""
    pause = 0.1
    while True:
        try:
            work()
        except Unavailable:
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 2.0)
        else:
            return True


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _send_model(model: Path, link: Link) -> None:
    meta = read_object(model / "model.json")
    files = _described(model)
    places = {file.sha256: model / file.path for file in files}
    offer = {"name": meta["name"], "files": to_dict(files), "meta": meta}
    for _ in range(_ROUNDS):
        missing = link.post_json("models", offer)["missing"]
        if not missing:
            return
        for digest in missing:
            link.put_file(f"blobs/{digest}", places[digest])
    say(f"the model {meta['name']!r} was sent {_ROUNDS} times and the launcher still misses files of it")


def _described(model: Path) -> list[SnapshotFile]:
    return [
        SnapshotFile(path=path, sha256=sha256_of(place), size_bytes=look[0])
        for path, place, look in _plain_files(model)
        if path != "model.json"
    ]


def _last_of_each_name(folder: Path) -> list[Path]:
    """Folders are named `<n>-<name>` in the order they were saved; one without model.json is not complete."""
    last: dict[str, Path] = {}
    for model in sorted(folder.glob("*-*"), key=_number):
        name = read_object(model / "model.json").get("name")
        if isinstance(name, str):
            last[name] = model
    return list(last.values())


def _number(model: Path) -> tuple[int, str]:
    head = model.name.partition("-")[0]
    return (int(head) if head.isascii() and head.isdigit() else -1, model.name)


def _plain_files(folder: Path) -> Iterator[tuple[str, Path, Look]]:
    """(path below folder, place, (size, mtime)) of plain files, sorted; links are not followed."""
    return ((entry.path, entry.place, entry.look) for entry in _walk(folder) if not entry.why)


def _walk(folder: Path) -> Iterator[Entry]:
    """All that is no folder, and the folders that cannot be looked into."""
    closed: list[OSError] = []
    for root, folders, names in os.walk(folder, onerror=closed.append):
        folders.sort()
        linked = [name for name in folders if Path(root, name).is_symlink()]
        for name in sorted([*names, *linked]):
            place = Path(root, name)
            try:
                found = place.lstat()
            except OSError:
                continue
            why = "" if stat.S_ISREG(found.st_mode) else _KINDS.get(stat.S_IFMT(found.st_mode), "not a file")
            look = (found.st_size, found.st_mtime_ns)
            yield Entry(path=place.relative_to(folder).as_posix(), place=place, look=look, why=why)
    for error in closed:
        place = Path(os.fsdecode(error.filename))
        if place != folder:
            path = place.relative_to(folder).as_posix()
            yield Entry(path=path, place=place, look=(0, 0), why=f"cannot be read: {error.strerror}")
