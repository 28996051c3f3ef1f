"""Fetching data into the shared cache and building its read-only view: `python -m slicelift.runtime.warmup REQUEST`.

Runs before a gang, in the launcher's interpreter; the only part of a job that uses DVC. Any number of jobs may
run it at once: each version is fetched once, under a lock. REQUEST is a JSON file `{cache, scratch, refs}`;
every line of standard output is a JSON object, `{"message": ...}` on the way and `{"error": {code, message,
hint}}` or `{"done": true}` at the end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from slicelift.errors import Refused, SliceliftError
from slicelift.models import DataRef, from_dict, size_text
from slicelift.runtime.dataview import View, md5_of, remove_tree, write_stamp
from slicelift.runtime.folder import locked

Say = Callable[[str], None]
_MD5 = re.compile(r"[0-9a-f]{32}")
_SPARE_BYTES = 16 * 1024 * 1024
# of the files that did not come, how many are asked for again to tell a gap from an outage
_ASKED = 3


def main(request_path: str) -> int:
    """Warm every reference of the request; the exit code is 0 or 1, the reason is in the last line."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    refs = [from_dict(DataRef, ref) for ref in request["refs"]]
    try:
        for ref in refs:
            warm(ref, Path(request["cache"]), Path(request["scratch"]), say=_say)
    except SliceliftError as error:
        _print({"error": error.to_dict()})
        return 1
    except OSError as error:
        _print({"error": disk_error(error, Path(request["cache"])).to_dict()})
        return 1
    _print({"done": True})
    return 0


def warm(ref: DataRef, cache: Path, scratch: Path, *, say: Say) -> View:
    """The view of `ref`, made if it is not there or no longer true. Idempotent; waits for another job's fetch.

    Raises Refused "data-remote-unseen", "data-not-in-remote" naming the files, "data-corrupt-in-remote", SliceliftError
    "disk-full", "data-remote-away", "data-unsafe" and "data-fetch-failed"; OSError when the disk refuses.
    """
    view = View(cache, ref.md5)
    view.lock.parent.mkdir(parents=True, exist_ok=True)
    (cache / "views").mkdir(parents=True, exist_ok=True)
    say(f"Preparing {ref.path} ({ref.nfiles} files, {size_text(ref.size_bytes)})")
    with locked(view.lock):
        if view.exists():
            changed = view.changed()
            if not changed:
                return view
            say(
                f"{len(changed)} files of {ref.path} in the cache are not what they were; fetching them again"
            )
            view.drop(changed)
        _fetch(ref, cache, scratch, say=say)
        _build(view, _listing(ref, cache))
    return view


def _fetch(ref: DataRef, cache: Path, scratch: Path, *, say: Say) -> None:
    """Bring every object of `ref` into the cache and check its md5."""
    if not _is_cached(ref, cache):
        _need_room(ref, cache)
        say(f"Fetching {ref.path} from the remote {ref.remote}")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            _fetch_by_dvc(ref, cache, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    _check_bytes(ref, cache)


def _fetch_by_dvc(ref: DataRef, cache: Path, scratch: Path) -> None:
    """One `dvc fetch` in a scratch project that tracks `ref` alone, with our cache and its remote."""
    # DVC sends usage statistics unless told not to
    os.environ["DVC_NO_ANALYTICS"] = "1"
    # 0.8 s of import that a job with its data in the cache does not pay
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    (scratch / ".dvc" / "tmp").mkdir(parents=True)
    (scratch / ".dvc" / "config").touch()
    (scratch / "data.dvc").write_text(_tracking(ref), encoding="utf-8")
    with Repo(str(scratch), config=_configuration(ref, cache, scratch)) as repo:
        try:
            repo.fetch()
            trouble = ""
        except (DvcException, ValueError) as error:
            # the second is DVC's word for an odd listing
            trouble = str(error)
        if not _is_cached(ref, cache):
            raise _not_there(ref, cache, repo, trouble=trouble)


def _configuration(ref: DataRef, cache: Path, scratch: Path) -> dict[str, Any]:
    core = {
        "no_scm": True,
        "remote": ref.remote,
        "analytics": False,
        "check_update": False,
        # DVC's index lies in a folder shared by all users: ours must not learn from it what exists
        "site_cache_dir": str(scratch / "site"),
    }
    return {
        "core": core,
        "cache": {"dir": str(cache)},
        "remote": {ref.remote: dict(ref.remote_config)},
    }


def _tracking(ref: DataRef) -> str:
    """The text of a .dvc file for `ref`, under a name that needs no quoting."""
    lines = ["outs:", f"- md5: {ref.md5}", f"  size: {ref.size_bytes}", "  hash: md5", "  path: data"]
    if ref.md5.endswith(".dir"):
        lines.insert(3, f"  nfiles: {ref.nfiles}")
    return "\n".join([*lines, ""])


def _not_there(ref: DataRef, cache: Path, repo: Any, *, trouble: str) -> SliceliftError:
    """Why the fetch brought less than everything: a remote that cannot be seen, room, or files that the remote lacks."""
    folder = str(ref.remote_config.get("url", ""))
    if folder.startswith("/") and not os.access(folder, os.R_OK | os.X_OK):
        return _unseen(ref, folder)
    _need_room(ref, cache)
    listing = _remote_listing(ref, cache, repo)
    missing = sorted(path for path, md5 in listing.items() if not _object(cache, md5).is_file())
    if not any(_lacks(ref, repo, listing[path]) for path in missing[:_ASKED]):
        return _away(ref, trouble)
    names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    return Refused(
        "data-not-in-remote",
        f"The data {ref.path} could not be had whole from the remote {ref.remote}: missing {names}. {trouble}".strip(),
        "Run `dvc push` where the data was made. If it says that all is up to date, delete the folder's own "
        f"object {ref.md5} in the remote first: DVC takes its presence for that of all the files.",
        detail=missing[:100],
    )


def _unseen(ref: DataRef, folder: str) -> SliceliftError:
    return Refused(
        "data-remote-unseen",
        f"The remote {ref.remote} of {ref.path} is the folder {folder}, which this job cannot read.",
        "Move it below your home and push again, or ask an admin to show it to jobs: c.Launcher.visible (docs/isolation.md).",
    )


def _lacks(ref: DataRef, repo: Any, md5: str) -> bool:
    """Whether the remote says that it has no such object; one that cannot be asked says nothing."""
    try:
        remote = repo.cloud.get_remote_odb(ref.remote)
        remote.fs.info(remote.oid_to_path(md5))
    except Exception as error:  # noqa: BLE001 - each kind of remote has errors of its own
        return not any(_may_pass(each) for each in _causes(error))
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _may_pass(error: BaseException) -> bool:
    """An error of the network, or of a server's own."""
    said_no = isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError)
    return (isinstance(error, OSError) and not said_no) or int(getattr(error, "status", None) or 0) >= 500


def _away(ref: DataRef, trouble: str) -> SliceliftError:
    return SliceliftError(
        "data-remote-away",
        f"The remote {ref.remote} of {ref.path} does not answer as it should. {trouble}".strip(),
        "Look whether jobs can reach it, then `slicelift retry`.",
    )


def _remote_listing(ref: DataRef, cache: Path, repo: Any) -> dict[str, str]:
    """Like `_listing`, from the remote: DVC keeps a folder's listing out of the cache when a file failed."""
    from dvc.exceptions import DvcException

    try:
        return _listing(ref, cache)
    except OSError:
        pass
    try:
        remote = repo.cloud.get_remote_odb(ref.remote)
        return _parse_listing(ref, remote.fs.cat_file(remote.oid_to_path(ref.md5)))
    except (OSError, ValueError, DvcException):
        return {ref.path: ref.md5}


def _is_cached(ref: DataRef, cache: Path) -> bool:
    try:
        return all(_object(cache, md5).is_file() for md5 in _listing(ref, cache).values())
    except OSError:
        return False


def _check_bytes(ref: DataRef, cache: Path) -> None:
    """Every object has the md5 it is named by. One that has not is removed, so that it is fetched again."""
    wrong = []
    for path, md5 in _listing(ref, cache).items():
        place = _object(cache, md5)
        if md5_of(place) != md5:
            place.unlink()
            wrong.append(path)
    if wrong:
        raise Refused(
            "data-corrupt-in-remote",
            f"{len(wrong)} files of {ref.path} from the remote {ref.remote} have other bytes than their md5 says: "
            + ", ".join(wrong[:5]),
            "Delete these objects from the remote and run `dvc push` where the data was made.",
            detail=wrong[:100],
        )


def _listing(ref: DataRef, cache: Path) -> dict[str, str]:
    """Path below the view's content -> md5. Raises OSError when a folder's listing is not in the cache."""
    if not ref.md5.endswith(".dir"):
        return {".": ref.md5}
    return _parse_listing(ref, _object(cache, ref.md5).read_bytes())


def _parse_listing(ref: DataRef, raw: bytes) -> dict[str, str]:
    """Raises Refused "data-unsafe": both become parts of paths, and whoever may write to the remote has chosen them."""
    found = {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(raw)}
    for path, md5 in found.items():
        if not _MD5.fullmatch(md5) or path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise Refused(
                "data-unsafe", f"The listing of the data {ref.path} names what is no file in it: {path!r}."
            )
    return found


def _build(view: View, listing: dict[str, str]) -> None:
    """Make the tree of hard links aside and move it into place."""
    partial = view.root.with_name(f".{view.md5}.{os.getpid()}")
    remove_tree(partial)
    content = partial / "content"
    content.mkdir(parents=True) if "." not in listing else partial.mkdir(parents=True)
    for path, md5 in listing.items():
        target = content / path if path != "." else content
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(_object(view.cache, md5), target)
    for folder, _, _ in os.walk(content, topdown=False):
        Path(folder).chmod(0o555)
    write_stamp(partial, listing)
    remove_tree(view.root)
    partial.rename(view.root)


def _link(source: Path, target: Path) -> None:
    source.chmod(0o444)
    try:
        target.hardlink_to(source)
    except OSError:
        # another device, or as many links as the file system allows
        shutil.copyfile(source, target)
        target.chmod(0o444)


def _object(cache: Path, md5: str) -> Path:
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def _need_room(ref: DataRef, cache: Path) -> None:
    free = shutil.disk_usage(cache).free
    if free < ref.size_bytes + _SPARE_BYTES:
        raise SliceliftError(
            "disk-full",
            f"The data {ref.path} takes {size_text(ref.size_bytes)}; {size_text(free)} are free in the cache {cache}.",
            "Free space there, or move SLICELIFT_HOME to a larger disk, then `slicelift retry`.",
        )


def disk_error(error: OSError, cache: Path) -> SliceliftError:
    """What the cache's disk said, in our words."""
    code = "disk-full" if error.errno in (28, 122) else "data-fetch-failed"
    return SliceliftError(
        code,
        f"The data could not be laid out in the cache {cache}: {error}.",
        "Free space there or mend its rights, then `slicelift retry`.",
    )


def _say(message: str) -> None:
    _print({"message": message})


def _print(value: dict[str, Any]) -> None:
    # whoever started us may be gone: the fetched data is of use all the same
    with suppress(BrokenPipeError):
        print(json.dumps(value), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
