"""Becomes one user's process with that user's view of the machine: `python -I -S enclosure.py PLAN COMMAND...`, as root.

Run by path and with the standard library alone, so that it starts in some 30 ms. PLAN is a JSON object of
`slicelift_hub.isolation`. There is no parent left: the command takes this process's place, so that signals and the exit
status are its own. Whatever fails, the command is not run.
"""

# pathlib would cost a third of the start
# ruff: noqa: PTH103, PTH109, PTH112, PTH114, PTH115, PTH116, PTH118, PTH120, PTH211

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

SEAT = "SLICELIFT_SEAT"
# places that everyone may write to: each gets its own, in memory
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - they are what is replaced
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x00020000, 0x08000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 0x20, 0x1000, 0x4000, 0x80000
_PR_SET_NO_NEW_PRIVS = 38
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_LINKS = 40
_MESSAGE_BYTES = 4096

Plan = dict[str, Any]


def main(arguments: Sequence[str]) -> NoReturn:
    """Take the view, the network and the user of the plan, then run the command."""
    plan: Plan = json.loads(arguments[0])
    os.closerange(3, 1 << 16)
    os.umask(0o022)  # the launcher's is stricter, and the folders of the view are root's
    folder = os.getcwd()
    take_view(plan)
    words = dict(plan["environment"])
    if plan["ranks"] is not None:
        words[SEAT] = seat_ranks(plan)
    if not plan["network"]:
        take_network()
    become(plan)
    run(list(arguments[1:]), folder, {**os.environ, **words})


def take_view(plan: Plan) -> None:
    """A mount namespace in which hidden folders are empty but for the paths that the plan names."""
    unshare(_CLONE_NEWNS | _CLONE_NEWIPC)
    # an unmount outside (a disk taken away) still reaches us, nothing of ours gets out
    mount("none", "/", flags=_MS_REC | _MS_SLAVE)
    writable = {os.path.realpath(path) for path in plan["writable"]}
    paths = writable | {os.path.realpath(path) for path in plan["visible"]}
    links = [link for path in (*plan["visible"], *plan["writable"]) for link in _links_on(path)]
    # what is covered can still be reached by a descriptor taken before
    shown = {path: os.open(path, os.O_PATH) for path in paths}
    covers = _covers(plan, paths)
    for cover in covers:
        mode = "1777" if cover in _SHARED else "0755"
        mount(plan["name"], cover, kind="tmpfs", flags=_MS_NOSUID | _MS_NODEV, options=f"mode={mode}")
    for path in sorted(paths):
        if _below(path, covers) and not _below(path, writable - {path}):
            _show(path, shown[path], writable=path in writable)
    for link, target in links:
        if _below(link, covers) and not os.path.lexists(link):
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(target, link)
    _hide_processes()


def seat_ranks(plan: Plan) -> str:
    """Fork the process that will become the gang: it waits, with the user's rights, for what to run.

    Made by root since nobody else could give it a network, or a view in which the data is read-only. Returns a JSON
    object `{pid, socket, listener}`; the two descriptors outlive the exec. The listener is a socket on
    the gang's own loopback, for the agent to serve.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _sit(plan, theirs)
    theirs.close()
    _, handles, _, _ = socket.recv_fds(ours, _MESSAGE_BYTES, 1)
    if not handles:
        sys.exit("The ranks' surroundings could not be made.")
    for handle in (ours.fileno(), handles[0]):
        os.set_inheritable(handle, True)
    told = {
        "pid": pid,
        "socket": ours.detach(),
        "listener": handles[0],
    }
    return json.dumps(told)


def take_network() -> None:
    """A network of this process's own: loopback and nothing else."""
    unshare(_CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def become(plan: Plan) -> None:
    """Be the plan's user for good: no program can give rights back, be it setuid."""
    os.initgroups(plan["account"], plan["gid"]) if plan["account"] else os.setgroups([])
    os.setresgid(plan["gid"], plan["gid"], plan["gid"])
    os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    _check("prctl", _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    os.umask(0o077)


def run(command: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Exec the command in `folder` as the user sees it: the descriptor we stand on leads past every cover."""
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/")
    # Python ignores these, and what is ignored stays so over an exec
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - a list, never a shell
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}.\n")
        os._exit(127)


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; `os.unshare` exists from Python 3.12 on only."""
    _check("unshare", _libc().unshare(flags))


def mount(source: str, target: str, *, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    """mount(2). Raises OSError."""
    result = _libc().mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(f"mount on {target}", result)


def _sit(plan: Plan, line: socket.socket) -> NoReturn:
    unshare(_CLONE_NEWNS)
    mount("none", "/", flags=_MS_REC | _MS_SLAVE)
    for path in plan["ranks"]["read_only"]:
        mount(
            "none", os.path.realpath(path), flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
        )
    if not plan["ranks"]["network"]:
        take_network()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # the mlflow client opens a connection per call, and several threads may log at once
        listener.listen(128)
        socket.send_fds(line, [b"."], [listener.fileno()])
    become(plan)
    with line.makefile("rb") as stream:
        wish = stream.readline()
    if not wish.endswith(b"\n"):  # the agent ended without a gang
        os._exit(0)
    line.close()
    told = json.loads(wish)
    run(told["command"], told["folder"], told["environment"])


def _covers(plan: Plan, paths: set[str]) -> list[str]:
    """The folders to be emptied, outermost only: what is hidden, what all share, and what the user may not pass."""
    closed = {ancestor for path in paths if (ancestor := _closed_ancestor(path, plan["uid"]))}
    wanted = {os.path.realpath(path) for path in (*plan["hidden"], *_SHARED)} | closed
    there = {path for path in wanted if os.path.isdir(path)}
    return sorted(path for path in there if not _below(path, there - {path}))


def _closed_ancestor(path: str, uid: int) -> str:
    """The outermost folder above `path` through which this user cannot go, or ""."""
    parts = path.split("/")
    for end in range(2, len(parts)):
        ancestor = "/".join(parts[:end])
        found = os.stat(ancestor)
        needed = stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH
        if not found.st_mode & needed:
            return ancestor
    return ""


def _show(path: str, handle: int, *, writable: bool) -> None:
    """Bind what `handle` holds to its own path in a cover."""
    source = f"/proc/self/fd/{handle}"
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644))
    mount(source, path, flags=_MS_BIND | _MS_REC)
    if not writable:
        # a bind takes its read-only flag from a second call only
        mount("none", path, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _hide_processes() -> None:
    """Show nobody else's processes, whose command lines may tell secrets. Before Linux 5.8 this would reach all mounts."""
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    if (major, minor) >= (5, 8):
        with suppress(
            OSError
        ):  # a container may refuse it; other users' memory and environment stay closed all the same
            mount(
                "proc", "/proc", kind="proc", flags=_MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options="hidepid=2"
            )


def _links_on(path: str) -> list[tuple[str, str]]:
    """Every symbolic link on the way to `path`, with what it says: an interpreter is often found through several."""
    found: list[tuple[str, str]] = []
    rest = path.split("/")[1:]
    place = ""
    while rest and len(found) < _LINKS:
        step = f"{place}/{rest.pop(0)}"
        if os.path.islink(step):
            target = os.readlink(step)
            found.append((step, target))
            rest = os.path.normpath(os.path.join(place or "/", target)).split("/")[1:] + rest
            place = ""
        else:
            place = step
    return found


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _check(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    main(sys.argv[1:])
