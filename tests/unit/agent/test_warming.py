"""The container of a warm-up as a process: out of the runtime's archive, with a pod's folders, its exit code and word."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from slicelift.models import DataRef, JobSpec, to_dict
from slicelift.runtime.dataview import View
from slicelift_hub.launcher.backends.volcano.parcel import make_parcel

FILES = {"1.txt": b"one", "sub/2.txt": b"two"}


class Pod:
    """A pod's folders below `root`, and a remote with one data set."""

    def __init__(self, root: Path) -> None:
        self.root, self.remote = root, root / "remote"
        for name in ("request", "data", "scratch"):
            (root / name).mkdir(parents=True)
        (root / "runtime.pyz").write_bytes(make_parcel())
        listing = [{"md5": self.store(content), "relpath": path} for path, content in FILES.items()]
        md5 = self.store(json.dumps(listing).encode(), suffix=".dir")
        words = {"size_bytes": 6, "nfiles": 2, "remote": "store", "remote_config": {"url": str(self.remote)}}
        self.ref = DataRef(path="data", dvc_file="data.dvc", md5=md5, **words)

    @property
    def view(self) -> View:
        return View(self.root / "data", self.ref.md5)

    def store(self, content: bytes, *, suffix: str = "") -> str:
        """Into the remote, as DVC has it."""
        md5 = hashlib.md5(content).hexdigest() + suffix
        place = self.object(md5)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return md5

    def object(self, md5: str) -> Path:
        return self.remote / "files" / "md5" / md5[:2] / md5[2:]

    def run(
        self, *, python: tuple[str, ...] = (sys.executable,), url: str = "http://127.0.0.1:9", **more: Any
    ) -> tuple[int, str]:
        """(exit code, what it printed)."""
        place = {"notebook": "n", "script": "s", "cwd": ".", "python": "python3"}
        spec = JobSpec(name="job", snapshot_id="0" * 64, data=(self.ref,), **place, **more)
        request = {"attempt_id": "r-a-1", "launcher_url": url, "token": "t", "spec": to_dict(spec)}
        (self.root / "request" / "warmup.json").write_text(json.dumps(request | {"ref": to_dict(self.ref)}))
        places = {"PYTHONPATH": str(self.root / "runtime.pyz"), "SLICELIFT_POD_ROOT": str(self.root)}
        places |= {"HOME": str(self.root / "scratch"), "PATH": os.environ["PATH"]}
        command = [*python, "-P", "-m", "slicelift.runtime.warming"]
        done = subprocess.run(command, env=places, cwd=self.root, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path / "slice lift")


@pytest.fixture
def vault() -> Iterator[tuple[str, dict[str, str]]]:
    """A launcher that only answers for secrets: (its address, what it has)."""
    values: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(values).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", values
        server.shutdown()
        thread.join()


def test_it_fetches_once_and_knows_what_is_there(pod: Pod) -> None:
    assert pod.run()[0] == 0
    found = {name: (pod.view.content / name).read_bytes() for name in FILES}
    assert (found, pod.view.changed()) == (FILES, [])
    for md5 in (hashlib.md5(content).hexdigest() for content in FILES.values()):
        pod.object(md5).unlink()
    # also one without DVC, since there is nothing to fetch
    assert pod.run(python=(sys.executable, "-S"))[0] == 0


def test_what_another_try_cannot_mend_ends_the_job(pod: Pod) -> None:
    pod.object(hashlib.md5(b"two").hexdigest()).unlink()
    code, told = pod.run()
    assert (code, "data-not-in-remote" in told, "missing sub/2.txt" in told) == (78, True, True)
    pod.store(b"two")
    pod.object(hashlib.md5(b"two").hexdigest()).write_bytes(b"owt")
    code, told = pod.run()
    assert (code, "data-corrupt-in-remote" in told) == (78, True)
    code, told = pod.run(python=(sys.executable, "-S"))
    assert (code, "dvc-missing" in told) == (78, True)


@pytest.mark.parametrize(
    ("path", "md5"),
    [("../out", ""), ("/etc/out", ""), ("a//b", ""), ("a", "../../../../request/warmup.json")],
)
def test_no_listing_leads_out_of_the_cache(pod: Pod, path: str, md5: str) -> None:
    listing = [{"md5": md5 or pod.store(b"one"), "relpath": path}]
    pod.ref = replace(pod.ref, md5=pod.store(json.dumps(listing).encode(), suffix=".dir"))
    code, told = pod.run()
    assert (code, "data-unsafe" in told) == (78, True), told
    assert (pod.root / "request" / "warmup.json").exists()
    assert list((pod.root / "data" / "views").iterdir()) == []


def test_a_remote_that_is_away_may_be_back(pod: Pod) -> None:
    pod.ref = replace(pod.ref, remote_config={"url": "http://127.0.0.1:9"})
    code, told = pod.run()
    assert (code, "data-remote-away" in told) == (1, True), told
    pod.ref = replace(pod.ref, remote_config={"url": "/of/another/machine"})
    code, told = pod.run()
    assert (code, "data-remote-unseen" in told) == (78, True), told


def test_keys_are_the_jobs_secrets_and_are_not_told(pod: Pod, vault: tuple[str, dict[str, str]]) -> None:
    url, values = vault
    code, told = pod.run(url=url, secrets=("KEY",))
    assert (code, "secret-missing" in told) == (78, True)
    values["KEY"] = pod.ref.path + "-or-something"
    assert pod.run(url=url, secrets=("KEY",))[0] == 0


def test_without_a_request_it_may_be_tried_again(pod: Pod) -> None:
    pod.run()
    (pod.root / "request" / "warmup.json").unlink()
    places = {"PYTHONPATH": str(pod.root / "runtime.pyz"), "SLICELIFT_POD_ROOT": str(pod.root)}
    command = [sys.executable, "-P", "-m", "slicelift.runtime.warming"]
    done = subprocess.run(command, env=places, capture_output=True, text=True, check=False)
    assert (done.returncode, "data-fetch-failed" in done.stdout) == (1, True)
