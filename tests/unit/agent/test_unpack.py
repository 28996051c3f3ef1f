"""A snapshot stays within its workspace."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from slicelift.errors import Refused
from slicelift.runtime.unpack import unpack


def archive(*members: tuple[str, bytes | str], kind: bytes | None = None) -> io.BytesIO:
    """Members (path, bytes of a file, or the target of a link)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in members:
            member = tarfile.TarInfo(path)
            member.mode = 0o755 if path.endswith(".sh") else 0o644
            if isinstance(content, str):
                member.type, member.linkname = kind or tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return io.BytesIO(stream.getvalue())


def test_files_modes_and_links(tmp_path: Path) -> None:
    workspace = tmp_path / "工作 space"
    stream = archive(("a/文 件.txt", b"text"), ("run.sh", b"#!"), ("a/link", "../run.sh"), ("folder", "a"))
    assert unpack(stream, workspace) == 4
    assert (workspace / "folder/文 件.txt").read_bytes() == b"text"
    assert (workspace / "a/link").read_bytes() == b"#!"
    assert oct((workspace / "run.sh").stat().st_mode & 0o777) == "0o755"
    assert oct((workspace / "a/文 件.txt").stat().st_mode & 0o777) == "0o644"


def test_unpacking_again_starts_anew(tmp_path: Path) -> None:
    unpack(archive(("old", b"")), tmp_path / "w")
    unpack(archive(("new", b"")), tmp_path / "w")
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["new"]


@pytest.mark.parametrize(
    "members",
    [
        [("../out", b"")],
        [("/etc/out", b"")],
        [("a/../../out", b"")],
        [("link", "/etc/passwd")],
        [("link", "../out")],
        # lexically inside, really outside: p/q/x leads up to r first
        [("r/f", b""), ("p/q/x", "../../r"), ("p/q/y", "x/../..")],
    ],
)
def test_nothing_leaves_the_workspace(tmp_path: Path, members: list[tuple[str, bytes | str]]) -> None:
    with pytest.raises(Refused) as caught:
        unpack(archive(*members), tmp_path / "deep" / "w")
    assert caught.value.code == "snapshot-unsafe"
    assert not (tmp_path / "deep" / "out").exists()


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    with pytest.raises((Refused, OSError)):
        unpack(archive(("l", str(tmp_path / "outside")), ("l/f", b"x")), tmp_path / "w")
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_other_kinds_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(Refused):
        unpack(archive(("x", "y"), kind=kind), tmp_path / "w")


def test_a_cut_stream_is_an_error(tmp_path: Path) -> None:
    whole = archive(("a", b"x" * 5000)).getvalue()
    with pytest.raises(tarfile.TarError):
        unpack(io.BytesIO(whole[:2000]), tmp_path / "w")
