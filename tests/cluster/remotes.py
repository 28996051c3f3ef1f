"""Data tracked with DVC and pushed, and its remote as a server of this machine that counts what leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from slicelift.models import DataRef

# one process: importing DVC takes a second
_TRACK = "import sys; from dvc.repo import Repo; repo = Repo(); repo.add(sys.argv[1:]); repo.push()"


class Remote:
    """The folder of a directory remote, served by HTTP. `sent` counts the bytes of each object, `asked` its GETs.

    Until `gate` is set, GETs wait.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()

    def object(self, md5: str) -> Path:
        """Where an object lies."""
        return self.folder / "files" / "md5" / md5[:2] / md5[2:]

    def listing(self, ref: DataRef) -> dict[str, str]:
        """Path -> md5 of the files of a data set."""
        found = json.loads(self.object(ref.md5).read_bytes())
        return {entry["relpath"]: entry["md5"] for entry in found}


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """Data sets in a directory remote; `refs` by name, without an address."""

    folder: Path
    refs: Mapping[str, DataRef]

    def reference(self, name: str, remote: Remote) -> DataRef:
        """As a job that gets it from `remote` has it."""
        return replace(self.refs[name], remote_config={"url": remote.url})


def push(root: Path, sets: Mapping[str, Mapping[str, bytes]]) -> Pushed:
    """Track each set, a folder of files, with DVC and push it."""
    project, folder = root / "project", root / "remote"
    for name, files in sets.items():
        for path, content in files.items():
            place = project / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    (project / ".dvc").mkdir()
    config = f"[core]\n    no_scm = True\n    remote = store\n['remote \"store\"']\n    url = {folder}\n"
    (project / ".dvc" / "config").write_text(config)
    subprocess.run([sys.executable, "-c", _TRACK, *sets], cwd=project, check=True, capture_output=True)
    return Pushed(folder=folder, refs={name: _read(project, name, files) for name, files in sets.items()})


@contextmanager
def serving(folder: Path, host: str) -> Iterator[Remote]:
    """A directory remote at an address of this machine that pods reach."""
    with ThreadingHTTPServer((host, 0), SimpleHTTPRequestHandler) as server:
        remote = Remote(folder, f"http://{host}:{server.server_port}")
        server.RequestHandlerClass = partial(_Handler, remote)  # type: ignore[assignment]  # makes one all the same
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield remote
        finally:
            remote.gate.set()
            server.shutdown()
            thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, remote: Remote, *given: Any) -> None:
        self.remote = remote
        super().__init__(*given, directory=str(remote.folder))

    def do_GET(self) -> None:
        self.remote.asked[self._name()] += 1
        self.remote.gate.wait()
        super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        self.remote.sent[self._name()] += len(content)
        outputfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _name(self) -> str:
        return "".join(self.path.strip("/").split("/")[-2:])


def _read(project: Path, name: str, files: Mapping[str, bytes]) -> DataRef:
    out = yaml.safe_load((project / f"{name}.dvc").read_text())["outs"][0]
    words = {"md5": out["md5"], "size_bytes": out["size"], "nfiles": len(files), "remote": "store"}
    return DataRef(path=name, dvc_file=f"{name}.dvc", **words)
