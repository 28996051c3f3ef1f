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
from urllib.parse import urlsplit

from slicelift._version import __version__
from slicelift.errors import SliceliftError
from slicelift.launcher_client import default_home
from slicelift.tracking_account import make_password
from slicelift_profiles import rules
from slicelift_profiles.latest import Latest
from sqlalchemy.exc import SQLAlchemyError
from tornado.httpserver import HTTPServer
from tornado.web import Application as WebApplication
from traitlets import Bool, Dict, Enum, Float, Int, List, Unicode, default
from traitlets.config import Application

from slicelift_hub import inventory
from slicelift_hub.launcher.assembly import Settings, assemble
from slicelift_hub.launcher.backend import find_backend, make_backend
from slicelift_hub.launcher.calm import Calm
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
LEDGER_VARIABLE = "SLICELIFT_LEDGER"


class Launcher(Application):  # type: ignore[misc]  # traitlets is typed in part only
    """Runs jobs and keeps the truth about them, for one user on one machine."""

    name = "slicelift-launcher"
    description = "The Slicelift launcher: queue, slots, ledger and metrics of your jobs, on 127.0.0.1 only."
    version = __version__

    home = Unicode(
        help="Folder of ledger, store and state file. Default: SLICELIFT_HOME, else the XDG data folder."
    ).tag(config=True)
    port = Int(8765, help="Port to listen on. 0: the one it had last, else any free one.").tag(config=True)
    address = Unicode(
        LOOPBACK,
        help="IPv4 address to listen on. On a cluster 0.0.0.0, so that pods can call; every call but /health needs a token.",
    ).tag(config=True)
    public_url = Unicode(
        help="Where jobs and sessions reach this launcher, such as http://launcher.slicelift:8765. Default: on 127.0.0.1."
    ).tag(config=True)
    hosts = List(
        Unicode(), help="Names beside 127.0.0.1, localhost and that of `public_url` that it may be called by."
    ).tag(config=True)
    ledger = Unicode(
        help="Where the ledger is: postgresql+psycopg://USER:PASSWORD@HOST/DATABASE. Default: SLICELIFT_LEDGER, else "
        "SQLite in the home. One launcher per ledger."
    ).tag(config=True)
    ledger_patience_seconds = Float(
        180,
        help="How long a start waits for a ledger on PostgreSQL that does not answer, or that another launcher still serves.",
    ).tag(config=True)
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
    queues = List(
        Unicode(), ["default"], help="Names of the queues that jobs may ask for on one machine."
    ).tag(config=True)
    tracker = Enum(["mlflow", "none"], "mlflow", help="Where runs are told to, beside the ledger.").tag(
        config=True
    )
    tracker_port = Int(0, help="Port of the MLflow server on 127.0.0.1. 0: any free one.").tag(config=True)
    tracker_auth = Bool(
        help="Let MLflow ask everyone who they are, and give each owner an account of their own. Default: under a hub."
    ).tag(config=True)
    backend = Unicode(
        "slicelift.backends.local.Local",
        help="What runs jobs, a class by its full name. On a cluster slicelift_hub.launcher.backends.volcano.Volcano, with "
        "settings of its own (docs/volcano.md).",
    ).tag(config=True)
    policy_file = Unicode(
        help="Rules of who may launch what (docs/policy.md). Default: everyone whatever there is. Read again when it changes."
    ).tag(config=True)
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
    saving_seconds = Float(
        60,
        help="How long the ranks of a suspended job of this machine may take to save a checkpoint. On a cluster it is the "
        "preset's grace_seconds.",
    ).tag(config=True)
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
        "backend": "Launcher.backend",
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
        for handler in logging.getLogger().handlers:
            handler.addFilter(Calm())
        # one line per call would be twenty a second per job
        for name in ("httpx", "tornado.access"):
            logging.getLogger(name).setLevel(logging.WARNING)
        root = Path(self.home) if self.home else default_home()
        # taken out: what is started from here, jobs among it, must not know the password in it
        self._ledger_default = os.environ.pop(LEDGER_VARIABLE, "")
        if self.hub:
            ask_to_leave(root)
        with Home(root, patience=HANDOVER_SECONDS if self.hub else LOCK_SECONDS) as home:
            self.load_config_file("launcher_config", path=str(home.root))
            asyncio.run(self._serve(home))

    async def _serve(self, home: Home) -> None:
        identity = home.identity()
        sockets = listen(self.port, former=identity.port, address=self.address)
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

        kind = find_backend(self.backend)
        url = f"http://{LOOPBACK if self.address == '0.0.0.0' else self.address}:{port}"  # noqa: S104
        public_url, name = _check_url(self.public_url or url)
        settings = Settings(
            version=__version__,
            instance=secrets.token_hex(8),
            url=url,
            public_url=public_url,
            hosts=frozenset([*self.hosts, name]),
            token=identity.token,
            key=identity.key,
            ledger=self.ledger or self._ledger_default or home.root / "ledger.db",
            ledger_patience_seconds=self.ledger_patience_seconds,
            inventory=self._items(home) if kind.leased else [],
            queues=tuple(self.queues),
            rules=Latest(Path(self.policy_file) if self.policy_file else rules.SHIPPED, rules.load),
            tracker=self.tracker,
            tracker_port=self.tracker_port,
            snapshot_limit_bytes=self.snapshot_limit_bytes,
            upload_limit_bytes=self.upload_limit_bytes,
            pace=Pace(poll=self.poll_seconds, unknown=self.unknown_seconds),
            hub=HubAccess.of_environment(os.environ) if self.hub else None,
            tracker_auth=self.tracker_auth,
        )
        backend = make_backend(
            kind,
            home.root,
            config=self.config,
            apart=self.isolation,
            under_hub=self.hub,
            network=self.gang_network,
            visible=self.visible,
            saving_seconds=self.saving_seconds,
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
            # a hub that is restarted must not end jobs, nor a launcher's pod that moves: they are the cluster's.
            # who ends the whole says so by /shutdown
            keep_jobs = self.keep_jobs or self.hub or not services.policy.leased
            loop.add_signal_handler(number, services.stop, keep_jobs)

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


def _check_url(text: str) -> tuple[str, str]:
    """(the address without a slash at its end, its host). Raises `bad-public-url`."""
    try:
        parts = urlsplit(text)
        host = parts.hostname if parts.scheme in ("http", "https") and not parts.query else None
    except ValueError:
        host = None
    if not host:
        hint = "c.Launcher.public_url is like http://launcher.slicelift:8765."
        raise SliceliftError("bad-public-url", f"{text!r} is no address that jobs could call.", hint)
    return text.rstrip("/"), host


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
    services.sole.give_up()
    close = getattr(services.backend, "close", None)  # of a backend that holds connections
    if close is not None:
        close()
    for pool in (services.pool, services.backend_pool, services.plan_pool):
        pool.shutdown(wait=False, cancel_futures=True)
    services.ledger.close()
