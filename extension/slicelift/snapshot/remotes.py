"""Where DVC keeps the blobs: a remote's settings without its secrets, and what a directory remote lacks."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from slicelift.errors import Refused
from slicelift.models import DataRef
from slicelift.snapshot.survey import named

# DVC's remote options that hold no secret, though perhaps a path to one: what is not listed stays behind
_TRAVEL = """
url jobs checksum_jobs worktree version_aware type shared protected slow_link_warning verify timeout
connect_timeout read_timeout connection_timeout ssl_verify allow_anonymous_login user profile auth method
custom_auth_header ask_password ask_passphrase cert_path key_path region credentialpath configpath endpointurl
listobjects use_ssl sse sse_kms_key_id sse_customer_algorithm acl grant_read grant_read_acp grant_write_acp
grant_full_control cache_regions projectname port keyfile gss_auth allow_agent max_sessions kerb_ticket replication
kerberos kerberos_principal proxy_to data_proxy_target use_https account_name tenant_id client_id
exclude_environment_credential exclude_visual_studio_code_credential exclude_shared_token_cache_credential
exclude_managed_identity_credential oss_endpoint gdrive_use_service_account gdrive_client_id
gdrive_user_credentials_file gdrive_service_account_user_email gdrive_service_account_json_file_path
gdrive_trash_only gdrive_acknowledge_abuse
"""
_HTTP = ("http", "https", "webdav", "webdavs")


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A remote as a job may know it. `folder` is set for a directory remote; `secrets` are names only."""

    name: str
    config: Mapping[str, str]
    folder: Path | None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lack:
    """A file whose blob a remote lacks. `listing` is the folder's listing that says it is there.

    `short`: the blob is there, but with another size. `cached`: the local cache could repair it.
    """

    path: str
    remote: str
    listing: Path | None = None
    short: bool = False
    blob: Path | None = None
    cached: bool = True


def resolve(repo: Any, name: str | None) -> Remote:
    """The remote that DVC would use, `name` None for the default.

    Raises `Refused` with `dvc-remote-missing`, `dvc-remote-unsupported` or `dvc-missing`.
    """
    # DVC is imported by whoever opened `repo`; its error classes are asked for here
    from dvc.config import NoRemoteError, RemoteNotFoundError
    from dvc_objects.fs.errors import RemoteMissingDepsError

    try:
        remote = repo.cloud.get_remote(name)
    except (NoRemoteError, RemoteNotFoundError) as error:
        raise _no_remote(str(error).splitlines()[0]) from error
    except RemoteMissingDepsError as error:
        raise Refused(
            "dvc-missing", f"DVC cannot reach the remote: {error}", "Install what it asks for."
        ) from error
    if remote.worktree or remote.fs.version_aware:
        raise Refused(
            "dvc-remote-unsupported",
            f"The remote {remote.name!r} keeps versions by the cloud's own ids (version_aware or worktree); "
            "jobs fetch by content only.",
            "Push the data to a plain remote and make it the default: dvc remote add -d <name> <url>.",
        )
    if remote.fs.protocol == "local":
        return _directory(remote)
    # DVC's own resolver: it follows remote:// references from one remote to another
    from dvc.fs import get_fs_config

    config, secrets = clean(get_fs_config(repo.config, name=remote.name))
    return Remote(
        name=remote.name,
        config=config,
        folder=None,
        secrets=tuple(f"{remote.name}.{secret}" for secret in secrets),
    )


def clean(config: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options as text, what is or may be a secret taken out, and the names of those."""
    kept: dict[str, str] = {}
    secrets: list[str] = []
    travels = frozenset(_TRAVEL.split())
    for option, value in config.items():
        if option not in travels:
            secrets.append(option)
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        kept[option], dropped = _bare(text) if "://" in text else (text, [])
        secrets += [f"{option}'s {part}" for part in dropped]
    return kept, tuple(sorted(secrets))


def look(ref: DataRef, folder: Path, *, cache: Callable[[str], str]) -> tuple[int, int, list[Lack]]:
    """Look up every blob of `ref` in a directory remote: (blobs found, bytes found, what it lacks).

    The listing of a folder is read from the remote and checked against its own hash. Sizes are compared
    with what the .dvc file recorded, so a blob cut short by a full disk is found without reading it.
    """
    listing = _place(folder, ref.md5) if ref.md5.endswith(".dir") else None
    blobs = [(ref.path, ref.md5)] if listing is None else _listed(ref, listing)
    if blobs is None:
        return 0, 0, [_lack(ref, f"{ref.path}/", ref.md5, folder=folder, cache=cache)]
    found = [(path, md5, _size(_place(folder, md5))) for path, md5 in blobs]
    sizes = [size for _, _, size in found if size is not None]
    gone = [(path, md5) for path, md5, size in found if size is None]
    if gone:
        lacks = [_lack(ref, path, md5, folder=folder, cache=cache, listing=listing) for path, md5 in gone]
        return len(sizes), sum(sizes), lacks
    if ref.size_bytes and sum(sizes) != ref.size_bytes:
        return len(sizes), sum(sizes), _short(ref, found, folder=folder, cache=cache)
    return len(found) + (listing is not None), sum(sizes), []


def refusal(lacks: list[Lack], *, barred: list[str]) -> Refused:
    """`data-not-pushed` or `data-damaged`, naming the files and the repair that works for them."""
    paths = sorted(lack.path for lack in lacks)
    remote = lacks[0].remote
    if all(lack.short for lack in lacks):
        files = " ".join(sorted(f"'{lack.blob}'" for lack in lacks if lack.blob is not None))
        return Refused(
            "data-damaged",
            f"The remote {remote!r} holds these with another size than was recorded: {named(paths)}.",
            f"Remove the damaged blobs and push again: rm -f {files} && dvc push.",
            detail={"paths": paths},
        )
    return Refused(
        "data-not-pushed",
        f"The remote {remote!r} lacks {len(paths)} file{'s' * (len(paths) > 1)} of the data, so a job could "
        f"not fetch {'them' if len(paths) > 1 else 'it'}: {named(paths)}.",
        _repair(lacks, barred),
        detail={"paths": paths},
    )


def _bare(url: str) -> tuple[str, list[str]]:
    """A URL without what signs its user in. Over HTTP a user's name alone, or a query, may be a token."""
    parts = urlsplit(url)
    user, host = parts.netloc.rpartition("@")[::2]
    dropped = ["password"] if ":" in user else []
    parts = parts._replace(netloc=f"{user.partition(':')[0]}@{host}" if user else parts.netloc)
    if parts.scheme in _HTTP:
        dropped += (["user"] if user else []) + (["query"] if parts.query else [])
        parts = parts._replace(netloc=host, query="")
    return (urlunsplit(parts) if dropped else url), dropped


def _directory(remote: Any) -> Remote:
    folder = Path(remote.path).absolute()
    if not folder.is_dir():
        raise _no_remote(f"the directory {folder} of the remote {remote.name!r} does not exist")
    return Remote(name=remote.name, config={"url": os.fspath(folder)}, folder=folder)


def _no_remote(why: str) -> Refused:
    return Refused(
        "dvc-remote-missing",
        f"DVC tracks data here, but there is no remote that a job could fetch it from: {why}.",
        "Add one and push: dvc remote add -d store /path/to/a/shared/folder && dvc push. If its disk is not "
        "mounted, mount it.",
    )


def _place(folder: Path, md5: str) -> Path:
    return folder / "files" / "md5" / md5[:2] / md5[2:]


def _listed(ref: DataRef, listing: Path) -> list[tuple[str, str]] | None:
    """(path, md5) of a folder's files by the remote's listing; None when it is gone or damaged."""
    try:
        raw = listing.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != ref.md5.removesuffix(".dir"):
        return None
    return [(posixpath.join(ref.path, item["relpath"]), item["md5"]) for item in json.loads(raw)]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _lack(
    ref: DataRef,
    path: str,
    md5: str,
    *,
    folder: Path,
    cache: Callable[[str], str],
    listing: Path | None = None,
) -> Lack:
    place = _place(folder, md5)
    # a listing that is there, but not what its name says, keeps DVC from writing the right one
    blamed = listing or (place if md5.endswith(".dir") and place.exists() else None)
    return Lack(path=path, remote=ref.remote, listing=blamed, blob=place, cached=Path(cache(md5)).exists())


def _short(
    ref: DataRef,
    found: list[tuple[str, str, int | None]],
    *,
    folder: Path,
    cache: Callable[[str], str],
) -> list[Lack]:
    """The blobs whose size is not the local cache's; without a cache the output as a whole."""
    differing = [
        Lack(path=path, remote=ref.remote, short=True, blob=_place(folder, md5))
        for path, md5, size in found
        if _size(Path(cache(md5))) not in (None, size)
    ]
    blob = None if ref.md5.endswith(".dir") else _place(folder, ref.md5)
    return differing or [Lack(path=ref.path, remote=ref.remote, short=True, blob=blob)]


def _repair(lacks: list[Lack], barred: list[str]) -> str:
    """The way on. `dvc push` alone says "up to date" while the remote holds the folder's listing."""
    if barred:
        return f"{named(barred)}: `push: false` in its .dvc file keeps it here; take that line out, then `dvc push`."
    lost = sorted(lack.path for lack in lacks if not lack.cached)
    again = f" Not in the local cache either, so `dvc add` again first: {named(lost)}." if lost else ""
    listings = sorted({f"'{lack.listing}'" for lack in lacks if lack.listing is not None})
    if not listings:
        return f"Run `dvc push`.{again}"
    return (
        f"The remote still holds the listing of the folder, so `dvc push` alone would find nothing to do: "
        f"rm -f {' '.join(listings)} && dvc push.{again}"
    )
