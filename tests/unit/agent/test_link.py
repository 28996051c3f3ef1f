"""Where a launcher is: on this machine, behind a hub's proxy, or on a cluster with a certificate."""

from __future__ import annotations

import http.client

import pytest
from slicelift.runtime.link import make_connection, path_of


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("http://127.0.0.1:8765", "127.0.0.1", 8765, ""),
        ("http://launcher.slicelift:8765/", "launcher.slicelift", 8765, ""),
        ("http://hub:8000/services/launcher/", "hub", 8000, "/services/launcher"),
        ("https://hub.example.org/services/launcher", "hub.example.org", 443, "/services/launcher"),
    ],
)
def test_an_address_is_host_port_and_the_path_below_which_it_answers(
    url: str, host: str, port: int, path: str
) -> None:
    connection = make_connection(url, timeout_seconds=1)
    assert (connection.host, connection.port, path_of(url)) == (host, port, path)
    assert isinstance(connection, http.client.HTTPSConnection) == url.startswith("https")
