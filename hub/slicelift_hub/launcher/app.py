"""The launcher as an application: what an admin can set, and the order in which its parts come up and go down."""

from __future__ import annotations

import asyncio
import logging
import os
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
from slicelift.tracking_account import make_password
from sqlalchemy.exc import SQLAlchemyError
from tornado.httpserver import HTTPServer
from tornado.web import Application as WebApplication
from traitlets import Bool, Dict, Enum, Float, Int, List, Unicode, default
from traitlets.config import Application

from slicelift_hub import inventory
from slicelift_hub.launcher.assembly import Settings, assemble
from slicelift_hub.launcher.backend import make_backend
from slicelift_hub.launcher.chores import start_chores
from slicelift_hub.launcher.daemon import (
    HANDOVER_SECONDS,
    LOCK_SECONDS,
    LOOPBACK,
    Home,
    Identity,
    ask_to_leave,
    listen,
)
from slicelift_hub.launcher.dispatch import Pace
from slicelift_hub.launcher.handler import UnknownHandler
from slicelift_hub.launcher.hub_tokens import HubAccess
from slicelift_hub.launcher.routes import make_routes
from slicelift_hub.launcher.services import Services
from slicelift_hub.leases import Item, make_inventory

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
    inventory = Unicode(
        "auto",
        help="Which slices and GPUs there are: `auto` (NVML, else one simulated H100), `nvml`, `simulated`, `none`, or "
        "the path of a declared inventory (docs/profiles.md).",
    ).tag(config=True)
    gpus = Int(-1, help="How many whole GPUs may be given out. -1: as the inventory says.").tag(config=True)
    slices = List(
        Dict(),
        help="Slices in place of the inventory's: `{'name': '1g.10gb', 'uuid': 'MIG-...'}`; without uuid a simulated one.",
    ).tag(config=True)
    queues = List(Unicode(), ["default"], help="Names of the queues that jobs may ask for.").tag(config=True)
    tracker = Enum(["mlflow", "none"], "mlflow", help="Where runs are told to, beside the ledger.").tag(
        config=True
    )
    tracker_port = Int(0, help="Port of the MLflow server on 127.0.0.1. 0: any free one.").tag(config=True)
    tracker_auth = Bool(
        help="Let MLflow ask everyone who they are, and give each owner an account of their own. Default: under a hub."
    ).tag(config=True)
    backend_class = Unicode("slicelift.backends.local.Local", help="What runs jobs.").tag(config=True)
    isolation = Enum(
        ["auto", "always", "never"],
        "auto",
        help="Run each owner's jobs as a user of the system of their own (docs/isolation.md). `auto`: under a hub that "
        "was started as root; `always`: or do not start.",
    ).tag(config=True)
    gang_network = Enum(
        ["own", "host"],
        "own",
        help="The network of isolated ranks: `own` is loopback among themselves; `host` lets jobs download, and others "
        "reach the ports that ranks open.",
    ).tag(config=True)
    visible = List(
        Unicode(),
        help="Folders that isolated jobs see read-only although their own user cannot come there: kernels' environments "
        "below /root, say.",
    ).tag(config=True)
    keep_jobs = Bool(False, help="Let jobs go on when the launcher is stopped by a signal.").tag(config=True)
    hub = Bool(
        # a session of a hub has its other variables too, but not this one
        "JUPYTERHUB_SERVICE_NAME" in os.environ,
        help="Serve the users of the JupyterHub that manages this service; jobs go on when a signal stops it. Set by "
        "the hub's environment too.",
    ).tag(config=True)
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
        "hub": ({"Launcher": {"hub": True}}, "Serve the users of the hub that started this service."),
    }

    @default("tracker_auth")  # type: ignore[untyped-decorator]
    def _default_tracker_auth(self) -> bool:
        return bool(self.hub)

    def start(self) -> None:
        """Serve until stopped. Raises `SliceliftError` when it cannot come up."""
        os.umask(0o077)
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )
        # one line per call would be twenty a second per job
        for name in ("httpx", "tornado.access"):
            logging.getLogger(name).setLevel(logging.WARNING)
        root = Path(self.home) if self.home else default_home()
        if self.hub:
            ask_to_leave(root)
        with Home(root, patience=HANDOVER_SECONDS if self.hub else LOCK_SECONDS) as home:
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
            WebApplication(
                make_routes(services.hub.prefix if services.hub else ""),
                default_handler_class=UnknownHandler,
                services=services,
                cookie_secret=make_password(identity.key, "cookies"),
            )
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
            inventory=self._items(home),
            queues=tuple(self.queues),
            tracker=self.tracker,
            tracker_port=self.tracker_port,
            snapshot_limit_bytes=self.snapshot_limit_bytes,
            upload_limit_bytes=self.upload_limit_bytes,
            pace=Pace(poll=self.poll_seconds, unknown=self.unknown_seconds),
            hub=HubAccess.of_environment(os.environ) if self.hub else None,
            tracker_auth=self.tracker_auth,
        )
        backend = make_backend(
            self.backend_class,
            home.root,
            apart=self.isolation,
            under_hub=self.hub,
            network=self.gang_network,
            visible=self.visible,
        )
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
            # a hub that is restarted must not end jobs; who ends the whole says so by /shutdown
            loop.add_signal_handler(number, services.stop, self.keep_jobs or self.hub)

    async def _end_jobs(self, services: Services, *, keep_jobs: bool) -> None:
        _log.info("Stopping%s.", "; jobs go on" if keep_jobs else "")
        services.stopping = True
        ended = await services.dispatch.stop(keep_jobs=keep_jobs)
        if ended:
            _log.info("%d jobs were ended; `slicelift retry` starts one again.", ended)
            await services.call(services.tracker.settle)

    def _slots(self) -> int:
        return int(self.slots or max(2, len(os.sched_getaffinity(0))))

    def _items(self, home: Home) -> list[Item]:
        found = inventory.configured(self.inventory, slices=self.slices, gpus=self.gpus)
        inventory.publish(home.root, found)
        for note in found.notes:
            _log.info("%s", note)
        gpus = [gpu.index for gpu in found.gpus]
        return make_inventory(slots=self._slots(), gpus=gpus, slices=found.entries())


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
