"""Where everything of one bed lies and which addresses and ports it took: chosen once, kept in its folder."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

# as it was before tests put an empty home in its place: builds and images are kept between runs
ENVIRONMENT = dict(os.environ)
CACHE = Path(
    ENVIRONMENT.get("SLICELIFT_CLUSTER_CACHE")
    or Path(ENVIRONMENT.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slicelift-cluster"
)
NODE = "bed-node"
PORTS = (
    "etcd",
    "etcd-peer",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "volcano-webhook",
    "volcano-webhook-health",
    "volcano-scheduler",
    "volcano-scheduler-metrics",
    "volcano-controller",
    "volcano-controller-metrics",
    "kwok",
)
# numbers inside the node's own network: nobody else can hold them
KUBELET_HEALTH, DNS_HEALTH, PROXY_HEALTH = 10248, 8081, 10256


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One bed. `block` is a /22: pods, services, and the link between this machine and the node."""

    run: Path
    name: str
    block: str
    ports: dict[str, int] = field(default_factory=dict)
    fast_faults: bool = False

    @property
    def pods(self) -> ipaddress.IPv4Network:
        return self._part(0)

    @property
    def services(self) -> ipaddress.IPv4Network:
        return self._part(1)

    @property
    def gateway(self) -> str:
        """The bridge: the pods' way out, and where CoreDNS listens."""
        return str(self.pods[1])

    @property
    def host_ip(self) -> str:
        """This machine, as pods and the kubelet see it; the API server listens here only."""
        return str(self._part(2)[1])

    @property
    def node_ip(self) -> str:
        return str(self._part(2)[2])

    @property
    def link(self) -> str:
        return f"sl-{self.name}"

    @property
    def cgroup(self) -> str:
        return f"slicelift-bed-{self.name}"

    @property
    def api(self) -> str:
        return f"https://{self.host_ip}:{self.ports['kube-apiserver']}"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def shared(self) -> Path:
        """What is mounted below this folder on this machine also shows on the node."""
        return self.run / "shared"

    @property
    def geometry(self) -> Path:
        return self.run / "geometry.json"

    def folder(self, *parts: str) -> Path:
        """A folder of this bed, made if need be."""
        path = self.run.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _part(self, number: int) -> ipaddress.IPv4Network:
        return list(ipaddress.IPv4Network(self.block).subnets(new_prefix=24))[number]


def choose(run: Path, *, fast_faults: bool = False) -> Layout:
    """A new bed in `run` with ports and addresses that nothing else uses now; written to `run`/layout.json."""
    run.mkdir(parents=True, exist_ok=True)
    layout = Layout(
        run=run.resolve(),
        name=secrets.token_hex(3),
        block=_free_block(),
        ports=_free_ports(),
        fast_faults=fast_faults,
    )
    (run / "layout.json").write_text(json.dumps(asdict(layout), default=str, indent=1))
    return layout


def load(run: Path) -> Layout | None:
    """The bed of the folder `run`, None when there is none."""
    file = run / "layout.json"
    if not file.exists():
        return None
    values = json.loads(file.read_text())
    return Layout(**values | {"run": Path(values["run"])})


def _free_ports() -> dict[str, int]:
    """All at once, so that no two are the same."""
    with contextlib.ExitStack() as held:
        found = {}
        for name in PORTS:
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found[name] = one.getsockname()[1]
        return found


def _free_block() -> str:
    taken = _routed()
    while True:
        address = int(ipaddress.IPv4Address("10.0.0.0")) + (secrets.randbelow(2**14 - 64) + 32) * 1024
        block = ipaddress.IPv4Network((address, 22))
        if not any(block.overlaps(network) for network in taken):
            return str(block)


def _routed() -> list[ipaddress.IPv4Network]:
    """Every network that this machine has a route to, but for the default one."""
    told = subprocess.run(
        ["ip", "-j", "-4", "route", "show", "table", "all"], capture_output=True, check=True
    )
    names = [route["dst"] for route in json.loads(told.stdout or b"[]")]
    return [ipaddress.IPv4Network(name, strict=False) for name in names if name != "default"]
