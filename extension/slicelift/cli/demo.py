"""The demo project of a clone, made ready beside the start of the services."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path("notebooks") / "prepare_demo.py"
NOTEBOOK = Path("notebooks") / "quickstart.ipynb"

Say = Callable[[str], None]


class Demo:
    """Runs `notebooks/prepare_demo.py` of `folder` where there is one, and passes its lines on."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._process: subprocess.Popen[str] | None = None
        if not (folder / SCRIPT).is_file():
            return
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._pass_on, args=(self._process, say), daemon=True)
        self._reader.start()

    def wait(self) -> bool:
        """Whether the demo is ready; False also where there is none."""
        if self._process is None:
            return False
        self._reader.join()
        return self._process.wait() == 0

    def stop(self) -> None:
        """End it early; what it has written so far is good for the next time."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    @staticmethod
    def _pass_on(process: subprocess.Popen[str], say: Say) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if line.strip():
                    say(f"demo: {line.rstrip()}")
