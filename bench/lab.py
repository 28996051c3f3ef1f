"""JupyterLab with Chromium in front of it, as a person has it: for what can only be measured in a page."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

START_SECONDS = 90


@contextlib.contextmanager
def page(root: Path) -> Iterator[Page]:
    """A window on JupyterLab over the folder `root`, its jobs panel open. Raises RuntimeError without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise RuntimeError("no chromium is installed: apt-get install chromium")
    with _server(root) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        window = browser.new_page(viewport={"width": 1400, "height": 900})
        window.goto(address)
        window.locator("[role=tab][data-id='slicelift-jobs']").click()
        window.locator("#slicelift-jobs .sl-jobs").wait_for()
        yield window
        browser.close()


@contextlib.contextmanager
def _server(root: Path) -> Iterator[str]:
    """The address of a JupyterLab of its own, token and all."""
    port, token = _free_port(), secrets.token_hex(8)
    options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}"]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", *options]
    with (root.parent / "jupyterlab.log").open("ab") as log:
        server = subprocess.Popen(
            [*command, f"--IdentityProvider.token={token}"], cwd=root, stdout=log, stderr=log
        )
    try:
        _wait(f"http://127.0.0.1:{port}/api?token={token}", server)
        yield f"http://127.0.0.1:{port}/lab?token={token}"
    finally:
        server.terminate()
        server.wait(30)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not answer within {START_SECONDS} s (exit status {server.poll()})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
