"""The extension as Jupyter sees it: its settings, its handlers, its start and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Bool, Float

from slicelift.server.handlers import HANDLERS
from slicelift.server.launcher import Launcher
from slicelift.server.workers import Workers


class SliceliftServer(ExtensionApp):
    """Promote notebooks and watch runs from JupyterLab."""

    name = "slicelift"
    load_other_extensions = True

    start_launcher = Bool(
        True,
        help="Start the user's own launcher on the first call when none runs. Under a hub none is ever started.",
    ).tag(config=True)
    worker_delay_seconds = Float(
        2.0,
        help="How long after the start of the server the promotion worker is started, so that both do not compete "
        "for the processor. It takes about 100 MiB. Negative: only when it is needed.",
    ).tag(config=True)

    def initialize_settings(self) -> None:
        """The parts that the handlers share."""
        self.launcher = Launcher(start=self.start_launcher)
        self.workers = Workers(root=self._root(), log=self.log)
        self.settings |= {"slicelift_launcher": self.launcher, "slicelift_workers": self.workers}
        self._warming: asyncio.Task[None] | None = None

    def initialize_handlers(self) -> None:
        """See `handlers.HANDLERS`."""
        self.handlers.extend(HANDLERS)

    async def _start_jupyter_server_extension(self, _serverapp: Any) -> None:
        """Called once the event loop runs."""
        if self.worker_delay_seconds >= 0:
            self._warming = asyncio.create_task(self._warm())

    async def stop_extension(self) -> None:
        """End the worker and the connections. The launcher goes on: its jobs do not need this server."""
        if self._warming is not None:
            self._warming.cancel()
        await self.workers.close()
        await self.launcher.close()

    async def _warm(self) -> None:
        await asyncio.sleep(self.worker_delay_seconds)
        await self.workers.warm()

    def _root(self) -> str:
        """The worker's working directory: what paths of the page are relative to."""
        contents = self.serverapp.contents_manager if self.serverapp else None
        root = Path(str(getattr(contents, "root_dir", "") or ".")).expanduser()
        return str(root if root.is_dir() else Path.home())
