"""What the gate does when MLflow goes away in the middle of an answer: a stand-in, as MLflow cannot be made to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

PLACE = "/api/2.0/mlflow-artifacts/artifacts/1/file.bin"
AUTH = {"Authorization": "Bearer t-bob"}
LARGE = b"x" * 3_000_000


@pytest.fixture
def serve_once() -> Iterator[Callable[[bytes], str]]:
    """The address of a server that sends these bytes as its one answer and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(content: bytes) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n" + content)

    def serve(content: bytes) -> str:
        threads.append(threading.Thread(target=answer, args=(content,)))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for thread in threads:
        thread.join(10)
    listener.close()


@pytest.mark.parametrize(
    "content",
    [
        b"Content-Length: 9000000\r\n\r\n" + LARGE,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(LARGE), LARGE),
    ],
    ids=["sized", "chunked"],
)
def test_half_a_file_does_not_pass_for_a_whole_one(
    serve_once: Callable[[bytes], str], make_gate: Callable[[str], str], content: bytes
) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(make_gate(serve_once(content)) + PLACE, headers=AUTH, trust_env=False, timeout=20)


def test_an_answer_that_breaks_off_at_once_is_told(
    serve_once: Callable[[bytes], str], make_gate: Callable[[str], str]
) -> None:
    gate = make_gate(serve_once(b"Content-Length: 100\r\n\r\nxxx"))
    answer = httpx.get(gate + PLACE, headers=AUTH, trust_env=False, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (502, "tracker-broken-off")
