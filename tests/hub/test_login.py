"""Who gets in, how slow guessing is, and what the page where they sign in says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from slicelift_hub.accounts import Accounts
from slicelift_hub.authenticator import LocalAccounts
from slicelift_hub.config import APART, TOGETHER
from slicelift_hub.launcher.auth import whoami
from tornado.web import HTTPError

PASSWORD = "a phrase of my own"
HERE, ELSEWHERE = (SimpleNamespace(request=SimpleNamespace(remote_ip=ip)) for ip in ("127.0.0.1", "10.0.0.1"))


@pytest.fixture
def authenticator(tmp_path: Path) -> LocalAccounts:
    Accounts(tmp_path).add("José", password=PASSWORD, admin=True, groups=("ml",))
    return LocalAccounts(home=str(tmp_path), first_pause_seconds=0.001, many_guesses=3)


def attempt(authenticator: LocalAccounts, name: str, password: str, handler: Any = HERE) -> Any:
    return authenticator.get_authenticated_user(handler, {"username": name, "password": password})


def test_the_right_pass_phrase_lets_in_and_a_wrong_one_does_not(hub: Any, tools: Any) -> None:
    with hub.browser() as browser:
        page = tools.sign_in(browser, "ben", "wrong horse battery")
        assert page.status_code == 403
        assert "Invalid username or password" in page.text
        assert browser.get("/hub/home").url.path == "/hub/login"
        page = tools.sign_in(browser, "BEN", tools.PASSWORD)
        assert page.status_code == 200
        assert page.url.path == "/hub/home"
        assert "ben" in page.text


def test_the_page_says_what_keeps_users_apart(hub: Any) -> None:
    page = httpx.get(f"{hub.url}/hub/login", trust_env=False).text
    together = TOGETHER.format(user=whoami())
    assert (APART in page) + (together in page) == 1
    # which of the two, where somebody said no
    program = "from slicelift_hub import config; print(config.isolation_words())"
    environment = os.environ | {"SLICELIFT_ISOLATION": "off"}
    told = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert told.strip() == together


def test_everything_listens_on_loopback_alone(hub: Any) -> None:
    inner = json.loads((hub.home / "hub" / "ports.json").read_bytes())
    ports = {hub.port, hub.launcher_port, inner["hub"], inner["proxy"]}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    listening = [row[1].split(":") for row in rows if len(row) > 3 and row[3] == "0A"]
    found = {int(port, 16): address for address, port in listening if int(port, 16) in ports}
    assert found == dict.fromkeys(ports, "0100007F")


def test_names_and_rights_are_the_accounts(authenticator: LocalAccounts) -> None:
    model = asyncio.run(attempt(authenticator, "jose\u0301", PASSWORD))
    assert (model["name"], model["admin"], model["groups"]) == ("José", True, ["ml"])
    user = SimpleNamespace(name="José")
    assert asyncio.run(authenticator.refresh_user(user))["groups"] == ["ml"]
    Accounts(Path(authenticator.home)).remove("José")
    assert asyncio.run(authenticator.refresh_user(user)) is False


def test_guesses_are_slowed_and_then_rest_for_that_address_alone(authenticator: LocalAccounts) -> None:
    async def guess() -> None:
        for _ in range(3):
            assert await attempt(authenticator, "José", "wrong") is None
        for password in ("wrong", PASSWORD):
            with pytest.raises(HTTPError) as caught:
                await attempt(authenticator, "josé", password)
            assert caught.value.status_code == 429
        assert await attempt(authenticator, "José", PASSWORD, ELSEWHERE)
        assert await attempt(authenticator, "nobody", PASSWORD) is None

    asyncio.run(guess())


def test_what_is_too_long_to_be_one_is_no_guess(authenticator: LocalAccounts) -> None:
    async def guess() -> None:
        for _ in range(4):
            assert await attempt(authenticator, "José", "x" * 1001) is None
        assert await attempt(authenticator, "x" * 1001, PASSWORD) is None
        assert await attempt(authenticator, "José", PASSWORD)

    asyncio.run(guess())


def test_many_guesses_at_once_do_not_go_side_by_side(authenticator: LocalAccounts) -> None:
    async def flood() -> list[Any]:
        guesses = [attempt(authenticator, "José", f"wrong{number}") for number in range(20)]
        return await asyncio.gather(*guesses, return_exceptions=True)

    answers = asyncio.run(flood())
    assert sum(answer is None for answer in answers) <= 5
    assert all(answer is None or getattr(answer, "status_code", 0) == 429 for answer in answers)


def test_accounts_that_cannot_be_read_let_nobody_in_and_forget_nobody(authenticator: LocalAccounts) -> None:
    (Path(authenticator.home) / "hub" / "users.json").write_text("{")
    with pytest.raises(HTTPError) as caught:
        asyncio.run(attempt(authenticator, "José", PASSWORD))
    assert caught.value.status_code == 503
    authenticator.add_user(SimpleNamespace(name="somebody"))
