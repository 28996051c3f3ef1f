"""The node's own network: one link to this machine, a bridge for its pods; all of it goes with the node's namespace."""

from __future__ import annotations

import contextlib
import subprocess

from bed.layout import Layout

BRIDGE, UPLINK = "cni0", "uplink"
BRIDGE_ADDRESS = "02:00:00:00:00:01"
LAST_CHOICE = "9999"


def connect(layout: Layout, node: int) -> None:
    """Links this machine with the namespace of process `node`; pods and services are reached from here by routes."""
    inside = ("nsenter", "--target", str(node), "--net", "--")
    _do("ip", "link", "add", layout.link, "type", "veth", "peer", "name", UPLINK, "netns", str(node))
    _do("ip", "address", "add", f"{layout.host_ip}/24", "dev", layout.link)
    _do("ip", "link", "set", layout.link, "up")
    _do(*inside, "ip", "link", "set", "lo", "up")
    _do(*inside, "ip", "address", "add", f"{layout.node_ip}/24", "dev", UPLINK)
    _do(*inside, "ip", "link", "set", UPLINK, "up")
    _do(*inside, "ip", "route", "add", "default", "via", layout.host_ip)
    # a service is translated before it is routed; one that nobody answers would go round between here and there
    _do(*inside, "ip", "route", "add", "unreachable", str(layout.services))
    # CoreDNS listens at the bridge's address, before a pod makes the plugin want the bridge
    # with an address of its own: else it takes one of its ports', and when that pod ends, others look for it in vain
    _do(*inside, "ip", "link", "add", BRIDGE, "address", BRIDGE_ADDRESS, "type", "bridge")
    _do(*inside, "ip", "address", "add", f"{layout.gateway}/24", "dev", BRIDGE)
    _do(*inside, "ip", "link", "set", BRIDGE, "up")
    _do(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    for network in (layout.pods, layout.services):
        _do("ip", "route", "add", str(network), "via", layout.node_ip, "dev", layout.link)
    # when the node is gone, nothing meant for it may leave this machine
    _do("ip", "route", "add", "blackhole", layout.block, "metric", LAST_CHOICE)


def disconnect(layout: Layout) -> None:
    """Takes back what `connect` left on this machine; idempotent."""
    for command in (
        ("ip", "link", "delete", layout.link),
        ("ip", "route", "delete", "blackhole", layout.block, "metric", LAST_CHOICE),
    ):
        with contextlib.suppress(subprocess.CalledProcessError):
            _do(*command)


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
