"""Images of a bed without a registry: pause, and this Python's environment as a whole, ready in seconds.

A layer of several GiB is never written. The environment is hard-linked into one folder, kept by content, and that
folder is mounted over the empty layer of a tiny image, on the node alone: pods see an ordinary image, without a host
path, so that restricted namespaces take it, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bed import archives, node
from bed.archives import Entry, Recipe
from bed.layout import CACHE, Layout

PAUSE = "local.test/pause:1"
REPOSITORY = "local.test/slicelift"
USER, HOME = 1000, "/home/user"
CODE = "/opt/slicelift"
NEWEST_KEPT = 2
RECIPE = "3"  # of what lies beside the environment: a new number makes new images
SYSTEM = (
    "/usr/bin",
    "/usr/lib/git-core",
    "/usr/lib/ssl",  # where OpenSSL looks for the certificates of /etc/ssl
    "/usr/lib64",
    "/usr/share/git-core",
    "/usr/share/zoneinfo",
    "/usr/share/ca-certificates",
)
SETTINGS = (
    "/etc/ssl",
    "/etc/alternatives",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.cache",
)
PACKAGES = ("extension/slicelift", "hub/slicelift_hub", "spawner_profiles/slicelift_profiles")
Report = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """`name` has a tag, `by_digest` names the content; pods may ask for either, with imagePullPolicy IfNotPresent."""

    name: str
    by_digest: str


def load_pause(layout: Layout, binaries: Path) -> None:
    """What holds a pod's namespaces."""
    only = archives.layer([Entry(path="/pause", content=(binaries / "pause").read_bytes(), mode=0o755)])
    _load(layout, Recipe(name=PAUSE, layers=[only], command=["/pause"]))


def load_environment(layout: Layout, *, project: Path | None = None, report: Report = print) -> Image:
    """This interpreter's environment as an image for uid 1000; with `project` also Slicelift's own code from that tree.

    Shell, coreutils and git are in it. Idempotent; new content gives a new image.
    """
    key = _environment_digest()
    folder = _environment_folder(key, report=report)
    base = archives.layer([Entry(path=f"/.environment-{key}", content=b"")])
    layers = [base, archives.layer(_code(project))] if project else [base]
    tag = archives.digest(b"".join(layers)).removeprefix("sha256:")[:12]
    image = _load(
        layout, Recipe(name=f"{REPOSITORY}:{tag}", layers=layers, user=f"{USER}:{USER}", **_start())
    )
    _lay_over(layout, archives.digest(base), folder)
    return image


def _start() -> dict[str, object]:
    path = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    variables = {"PATH": path, "HOME": HOME, "LANG": "C.UTF-8"}
    return {"environment": variables, "command": ["python"], "folder": HOME}


def _load(layout: Layout, recipe: Recipe) -> Image:
    archive = layout.folder("images") / f"{recipe.name.rpartition('/')[2].replace(':', '-')}.tar"
    by_digest = f"{recipe.name.rpartition(':')[0]}@{archives.write(recipe, archive)}"
    _ctr(layout, "images", "import", str(archive))
    _ctr(layout, "images", "tag", "--force", recipe.name, by_digest)
    return Image(recipe.name, by_digest)


def _lay_over(layout: Layout, chain: str, folder: Path) -> None:
    """Mounts `folder` at the place where containerd keeps the unpacked content of the lowest layer."""
    key = f"bed-look-{secrets.token_hex(4)}"  # held by nothing: containerd collects it by itself
    told = _ctr(layout, "snapshots", "view", "--target", "/mnt", key, chain).split()
    place = told[told.index("bind") + 1]
    if place not in node.mounts(layout):
        node.run(layout, "mount", "--bind", "-o", "ro", str(folder), place)


def _ctr(layout: Layout, *arguments: str) -> str:
    done = node.run(layout, "ctr", "--namespace", "k8s.io", *arguments, check=False)
    if done.returncode:
        raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _environment_digest() -> str:
    """By the installed distributions and where they lie, not by their gigabytes."""
    site = Path(sysconfig.get_path("purelib"))
    installed = sorted(one.name for one in site.glob("*.dist-info"))
    told = "\n".join([RECIPE, sys.version, sys.prefix, sys.base_prefix, *installed])
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _environment_folder(key: str, *, report: Report) -> Path:
    folder = CACHE / "environments" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make_environment(folder, report)
    return folder


def _make_environment(folder: Path, report: Report) -> None:
    report("linking the environment of this Python into an image, once")
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    _furnish(fresh)
    for source in (*_wanted(), *SYSTEM):
        _link(Path(source), fresh)
    for source in SETTINGS:
        _copy(Path(source), fresh)
    fresh.rename(folder)
    _forget_old(folder)


def _wanted() -> list[str]:
    """The environment, the Python it is made of, and the system's libraries."""
    libraries = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH') or 'x86_64-linux-gnu'}"
    base = sys.base_prefix
    own = [base] if base != "/usr" else [str(one) for one in Path("/usr/lib").glob("python3*")]
    return [sys.prefix, *own, libraries]


def _furnish(root: Path) -> None:
    """The empty house: folders, links of a merged /usr, one user."""
    for folder in ("dev", "proc", "sys", "run", "etc", "usr/local", "var/tmp", "root", HOME.lstrip("/")):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").mkdir()
    for shared in ("tmp", "var/tmp"):
        (root / shared).chmod(0o1777)
    (root / "etc/passwd").write_text(f"root:x:0:0::/root:/bin/sh\nuser:x:{USER}:{USER}::{HOME}:/bin/bash\n")
    (root / "etc/group").write_text(f"root:x:0:\nuser:x:{USER}:\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    shutil.chown(root / HOME.lstrip("/"), USER, USER)


def _link(source: Path, root: Path) -> None:
    """Hard links where both lie on one disk, else a copy; the folders on the way are open to everybody."""
    if not source.is_dir() or (target := root / str(source).lstrip("/")).exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = subprocess.run(["cp", "-al", str(source), str(target)], capture_output=True, check=False)
    if linked.returncode:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    target.chmod(0o755)


def _copy(source: Path, root: Path) -> None:
    if source.exists():
        target = root / str(source).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _code(project: Path) -> Iterator[Entry]:
    """Slicelift's packages below /opt, found by a .pth file, and JupyterLab's part of them where it looks for it."""
    for package in PACKAGES:
        yield from _files(project / package, f"{CODE}/{package}")
    prefix = sys.prefix
    yield from _files(
        project / "extension/slicelift/labextension", f"{prefix}/share/jupyter/labextensions/slicelift"
    )
    yield from _files(project / "extension/jupyter-config", f"{prefix}/etc/jupyter/jupyter_server_config.d")
    lines = "".join(f"{CODE}/{package.partition('/')[0]}\n" for package in PACKAGES)
    yield Entry(path=f"{sysconfig.get_path('purelib')}/_slicelift_session.pth", content=lines.encode())


def _files(folder: Path, to: str) -> Iterator[Entry]:
    for file in folder.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield Entry(path=f"{to}/{file.relative_to(folder)}", content=file.read_bytes())


def _forget_old(newest: Path) -> None:
    kept = sorted(
        (one for one in newest.parent.iterdir() if one.is_dir()),
        key=lambda one: one.stat().st_mtime,
        reverse=True,
    )
    for old in kept[NEWEST_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
