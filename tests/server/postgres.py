"""A PostgreSQL of one's own for tests: in a fresh folder, on a socket in it, as an unprivileged user, gone afterwards.

Debian's server is taken from its folder (`apt-get install postgresql` has it; no service needs to run). Also by hand:
`python tests/server/postgres.py` prints an address and serves until Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

_START_SECONDS = 60
_OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",  # a kill loses nothing that the kernel has
    "max_connections": "200",
    "shared_buffers": "32MB",
    "log_min_messages": "warning",
}


class Postgres:
    """One server. `make_database` gives the address of an empty database in it."""

    def __init__(self) -> None:
        self._programs = _find_programs()
        # short: the path of a socket has at most 107 bytes
        self._folder = Path(tempfile.mkdtemp(prefix="sl-pg-"))
        self._user = "postgres" if os.geteuid() == 0 else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._run(
            "initdb",
            "-D",
            str(self._data),
            "-A",
            "trust",
            "-U",
            "slicelift",
            "-E",
            "UTF8",
            "--no-sync",
            "--no-locale",
        )

    def start(self) -> None:
        """Serve, also again after `stop` or `kill`; returns when it answers.

        For the thread that lives as long as the server should: it ends with the thread, too.
        """
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            # after a kill the first tries fail: children of the old server hold its memory for a moment
            if self._process is None or self._process.poll() is not None:
                self._launch()
            assert time.monotonic() < until, (self._folder / "log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """End all connections and the server, as a restart would."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a crash would: the server's children notice, and end all connections."""
        self._end(signal.SIGKILL)

    def make_database(self, locale: str = "C.UTF-8") -> str:
        """The address of a new, empty database."""
        self._count += 1
        name = f"ledger_{self._count}"
        self.sql(
            f"create database {name} template template0 lc_collate '{locale}' lc_ctype '{locale}'",
            database="postgres",
        )
        return f"postgresql+psycopg://slicelift@/{name}?host={quote(str(self._folder), safe='')}"

    def sql(self, query: str, *, database: str) -> list[list[str]]:
        """Straight from the server: the rows, as text."""
        command = [
            str(self._programs / "psql"),
            "-X",
            "-A",
            "-t",
            "-q",
            "-h",
            str(self._folder),
            "-U",
            "slicelift",
        ]
        done = subprocess.run(
            [*command, "-v", "ON_ERROR_STOP=1", "-F", "\t", "-d", database, "-c", query],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    def close(self) -> None:
        """The server and its folder are gone."""
        if self._process is not None and self._process.poll() is None:
            self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _launch(self) -> None:
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self._folder), *options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user(command, die_with_us=True), stdout=log, stderr=log, start_new_session=True
            )

    def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        if self._user:
            shutil.chown(self._folder, self._user)
        command = self._as_user([str(self._programs / program), *arguments])
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def _as_user(self, command: list[str], *, die_with_us: bool = False) -> list[str]:
        """The server refuses to run as root; and it must not outlive a killed test run."""
        words = ["--reuid", self._user, "--regid", self._user, "--clear-groups"] if self._user else []
        words += ["--pdeathsig", "INT"] if die_with_us else []
        return ["setpriv", *words, "--", *command] if words else command


@contextmanager
def serving() -> Iterator[Postgres]:
    """A running server for the time of the block."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


def _find_programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    program = shutil.which("postgres")
    assert program, "no PostgreSQL is installed: apt-get install postgresql"
    return Path(program).resolve().parent


if __name__ == "__main__":
    with serving() as made:
        print(made.make_database(), flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
