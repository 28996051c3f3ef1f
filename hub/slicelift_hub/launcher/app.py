"""The launcher as an application: what an admin can set, and the order in which its parts come up and go down."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from slicelift._version import __version__
from slicelift.errors import SliceliftError
from slicelift.launcher_client import default_home
from sqlalchemy.exc import SQLAlchemyError
from tornado.httpserver import HTTPServer
from tornado.web import Application as WebApplication
from traitlets import Bool, Dict, Enum, Float, Int, List, Unicode
from traitlets.config import Application
from traitlets.utils.importstring import import_item

from slicelift_hub.launcher.assembly import Settings, assemble
from slicelift_hub.launcher.chores import start_chores
from slicelift_hub.launcher.daemon import LOOPBACK, Home, Identity, listen
from slicelift_hub.launcher.dispatch import Pace
from slicelift_hub.launcher.handler import UnknownHandler
from slicelift_hub.launcher.routes import make_routes
from slicelift_hub.launcher.services import Services
from slicelift_hub.leases import make_inventory

_log = logging.getLogger(__name__)
_THREADS = 32


class Launcher(Application):  # type: ignore[misc]  # traitlets is typed in part only
    """Runs jobs and keeps the truth about them, for one user on one machine."""

    name = "slicelift-launcher"
    description = "The Slicelift launcher: queue, slots, ledger and metrics of your jobs, on 127.0.0.1 only."
    version = __version__

    home = Unicode(
        help="Folder of ledger, store and state file. Default: SLICELIFT_HOME, else the XDG data folder."
    ).tag(config=True)
    port = Int(8765, help="Port on 127.0.0.1. 0: the one it had last, else any free one.").tag(config=True)
    slots = Int(0, help="How many workers may run at once. 0: the number of cores, at least 2.").tag(
        config=True
    )
    gpus = Int(-1, help="How many whole GPUs may be given out. -1: as many as the system shows.").tag(
        config=True
    )
    slices = List(
        Dict(),
        help="Slices that may be given out: `{'name': '1g.10gb', 'uuid': 'MIG-...'}`; without uuid a simulated one.",
    ).tag(config=True)
    queues = List(Unicode(), ["default"], help="Names of the queues that jobs may ask for.").tag(config=True)
    tracker = Enum(["mlflow", "none"], "mlflow", help="Where runs are told to, beside the ledger.").tag(
        config=True
    )
    tracker_port = Int(0, help="Port of the MLflow server on 127.0.0.1. 0: any free one.").tag(config=True)
    backend_class = Unicode("slicelift.backends.local.Local", help="What runs jobs.").tag(config=True)
    keep_jobs = Bool(False, help="Let jobs go on when the launcher is stopped by a signal.").tag(config=True)
    log_retention_days = Float(30, help="How long logs are kept.").tag(config=True)
    keep_attempt_seconds = Float(3600, help="How long folders of ended attempts are kept.").tag(config=True)
    snapshot_limit_bytes = Int(2 * 1024**3, help="The largest snapshot taken in.").tag(config=True)
    upload_limit_bytes = Int(4 * 1024**3, help="The largest body of one upload.").tag(config=True)
    poll_seconds = Float(0.3, help="How often the backend is asked about a running job.").tag(config=True)

    unknown_seconds = Float(30, help="How long a backend may not know a job before it counts as lost.").tag(
        config=True
    )

    aliases = {  # noqa: RUF012 - traitlets wants a plain dict
        "home": "Launcher.home",
        "port": "Launcher.port",
        "slots": "Launcher.slots",
        "tracker": "Launcher.tracker",
        "mlflow-port": "Launcher.tracker_port",
        "backend": "Launcher.backend_class",
    }
    flags = {  # noqa: RUF012
        "keep-jobs": ({"Launcher": {"keep_jobs": True}}, "Let jobs go on when the launcher is stopped."),
    }

    def start(self) -> None:
        """Serve until stopped. Raises `SliceliftError` when it cannot come up."""
        os.umask(0o077)
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )
        # one line per call would be twenty a second per job
        for name in ("httpx", "tornado.access"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with Home(Path(self.home) if self.home else default_home()) as home:
            self.load_config_file("launcher_config", path=str(home.root))
            asyncio.run(self._serve(home))

    async def _serve(self, home: Home) -> None:
        identity = home.identity()
        sockets = listen(self.port, former=identity.port)
        port = sockets[0].getsockname()[1]
        home.remember(Identity(token=identity.token, key=identity.key, port=port))
        ending: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="launcher")
        services = await self._assemble(home, identity, port=port, pool=pool, ending=ending)
        server = HTTPServer(
            WebApplication(make_routes(), default_handler_class=UnknownHandler, services=services)
        )
        self._hear_signals(services)
        try:
            await self._come_up(home, services, server=server, sockets=sockets)
            keep_jobs = await ending
        except BaseException:
            await _go_down(home, services, server=server)
            raise
        await self._end_jobs(services, keep_jobs=keep_jobs)
        await _go_down(home, services, server=server)
        _log.info("The launcher has stopped.")

    async def _assemble(
        self,
        home: Home,
        identity: Identity,
        *,
        port: int,
        pool: ThreadPoolExecutor,
        ending: asyncio.Future[bool],
    ) -> Services:
        def stop(keep_jobs: bool) -> None:
            if not ending.done():
                ending.set_result(keep_jobs)

        settings = Settings(
            version=__version__,
            instance=secrets.token_hex(8),
            url=f"http://{LOOPBACK}:{port}",
            token=identity.token,
            key=identity.key,
            inventory=make_inventory(slots=self._slots(), gpus=self._gpus(), slices=self.slices),
            queues=tuple(self.queues),
            tracker=self.tracker,
            tracker_port=self.tracker_port,
            snapshot_limit_bytes=self.snapshot_limit_bytes,
            upload_limit_bytes=self.upload_limit_bytes,
            pace=Pace(poll=self.poll_seconds, unknown=self.unknown_seconds),
        )
        backend = import_item(self.backend_class)(home=home.root)
        return await assemble(home.root, settings, backend=backend, pool=pool, stop=stop)

    async def _come_up(
        self, home: Home, services: Services, *, server: HTTPServer, sockets: list[Any]
    ) -> None:
        await services.call(services.tracker.start)
        self._chores = start_chores(
            services,
            log_retention_seconds=self.log_retention_days * 86400,
            keep_attempt_seconds=self.keep_attempt_seconds,
        )
        server.add_sockets(sockets)
        state = {"url": services.url, "pid": os.getpid(), "version": __version__}
        state |= {"started": time.time(), "instance": services.instance, "token": home.identity().token}
        home.publish(state)
        adopted = await services.dispatch.adopt()
        _log.info("The launcher serves %s at %s (%d jobs adopted).", home.root, services.url, adopted)

    def _hear_signals(self, services: Services) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, services.stop, self.keep_jobs)

    async def _end_jobs(self, services: Services, *, keep_jobs: bool) -> None:
        _log.info("Stopping%s.", "; jobs go on" if keep_jobs else "")
        services.stopping = True
        ended = await services.dispatch.stop(keep_jobs=keep_jobs)
        if ended:
            _log.info("%d jobs were ended; `slicelift retry` starts one again.", ended)
            await services.call(services.tracker.settle)

    def _slots(self) -> int:
        return int(self.slots or max(2, len(os.sched_getaffinity(0))))

    def _gpus(self) -> int:
        if self.gpus >= 0:
            return int(self.gpus)
        return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))


async def _go_down(home: Home, services: Services, *, server: HTTPServer) -> None:
    services.stopping = True
    home.withdraw()
    server.stop()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await server.close_all_connections()
    try:
        await services.call(services.ingest.checkpoint)
    except (SliceliftError, SQLAlchemyError, OSError):
        _log.exception("The last points were not folded; they are in the log and will be at the next start.")
    await services.call(services.tracker.stop)
    for pool in (services.pool, services.backend_pool):
        pool.shutdown(wait=False, cancel_futures=True)
    services.ledger.close()
