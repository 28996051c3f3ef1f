"""Sessions through a real hub: what the form says, who gets a slice, who is refused, what survives.

About a minute: a hub, five sessions, two restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slicelift_hub.accounts import Accounts
from slicelift_profiles.catalog import SHIPPED
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.waiting import wait_for

SLICES = "/hub/spawn"


@pytest.fixture(scope="module")
def slices_hub(make_hub: Callable[..., Any], demo: Path) -> Any:
    """A hub with profiles of its own, over the simulated H100 that a machine without a GPU has."""
    hub = make_hub()
    shutil.copy(SHIPPED, hub.home / "profiles.yaml")
    settings = f"c.LocalSliceSpawner.profiles_file = {str(hub.home / 'profiles.yaml')!r}\n"
    settings += f"c.LocalSliceSpawner.demo = {str(demo)!r}\n"
    (hub.home / "jupyterhub_config.py").write_text(settings, encoding="utf-8")
    return hub.start()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project with a DVC remote beside it, as the clone's notebooks folder is."""
    root = tmp_path_factory.mktemp("clone")
    for path, text in {
        "notebooks/quickstart.ipynb": "{}",
        "notebooks/data/digits/1.pgm": "P5",
        "notebooks/data/.gitignore": "/digits\n",
        "notebooks/data/digits.dvc": "outs: []\n",
        "notebooks/.dvc/config": "['remote \"demo\"']\n    url = ../../.build/dvc-remote\n",
        "notebooks/.dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        ".build/dvc-remote/files/md5/ab/cdef": "P5",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root / "notebooks"


@pytest.fixture(scope="module")
def people(slices_hub: Any) -> dict[str, Any]:
    return {name: slices_hub.log_in(name) for name in ("anna", "ben", "李雷")}


@pytest.fixture
def session(people: dict[str, Any]) -> Any:
    """anna's, on the only 3g.40gb."""
    anna = people["anna"]
    if not anna.server().get("ready"):
        anna.spawn(profile="slice-3g-40gb")
    return anna


def holders(hub: Any) -> dict[str, str]:
    """Who holds what, by the ledger itself."""
    with sqlite3.connect(hub.home / "ledger.db", timeout=10) as database:
        rows = database.execute("select item, holder from leases where holder is not null").fetchall()
    return {item: holder for item, holder in rows if holder.startswith("session:")}


def states(page: str) -> dict[str, str]:
    """What the form says of each profile."""
    cards = re.findall(r'data-slug="([^"]+)".*?class="sl-state">([^<]*)<', page, re.DOTALL)
    return dict(cards)


def test_the_form_counts_what_is_free_and_says_why_not(people: dict[str, Any]) -> None:
    page = people["ben"].http.get(SLICES).text
    assert states(page) == {
        "cpu": "Free.",
        "slice-1g-10gb": "2 of 2 free.",
        "slice-2g-20gb": "1 of 1 free.",
        "slice-3g-40gb": "1 of 1 free.",
        "shared-gpu": "Shares of a GPU are given out on a cluster only.",
        "whole-gpu": "Whole GPU is for people in the group research.",
    }
    assert page.count(">simulated<") == 3
    assert "There is no GPU here: the slices are simulated" in page


def test_a_session_holds_its_slice_and_knows_it(session: Any, slices_hub: Any) -> None:
    assert holders(slices_hub) == {"slice-3g.40gb-0": "session:anna:"}
    environment = session.session()
    told = {
        name: environment.get(name)
        for name in ("SLICELIFT_PROFILE", "SLICELIFT_SLICE", "CUDA_VISIBLE_DEVICES")
    }
    assert told == {
        "SLICELIFT_PROFILE": "slice-3g-40gb",
        "SLICELIFT_SLICE": "3g.40gb",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert environment["SLICELIFT_SLICE_SIMULATED"] == "1"
    assert environment["SLICELIFT_LAUNCHER_URL"] == slices_hub.launcher_url
    assert environment["MLFLOW_TRACKING_TOKEN"] == environment["JUPYTERHUB_API_TOKEN"]
    assert not [name for name in environment if name.startswith(("CONFIGPROXY", "SLICELIFT_HOME"))]
    # the launcher, which gives out the same slices to jobs, sees it too
    found = slices_hub.operator().capacity()["slices"]
    assert {"name": "3g.40gb", "total": 1, "free": 0, "simulated": True} in found


def test_a_new_user_finds_a_project_of_their_own(session: Any, slices_hub: Any) -> None:
    home = Path(session.session()["HOME"])
    assert home == slices_hub.home / "homes" / "anna"
    assert home.stat().st_mode & 0o777 == 0o700
    project = home / "quickstart"
    git = ["git", "-c", "safe.directory=*", "-C", str(project)]
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert status.stdout == ""
    listed = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    assert {"quickstart.ipynb", "data/digits.dvc", ".dvc/config"} <= set(listed)
    assert (project / ".dvc-remote" / "files" / "md5" / "ab" / "cdef").is_file()
    assert "url = ../.dvc-remote" in (project / ".dvc" / "config").read_text()


def test_the_second_is_refused_at_once_and_can_take_the_nearest(
    session: Any, people: dict[str, Any], slices_hub: Any, tools: Any
) -> None:
    ben = people["ben"]
    form = {"profile": "slice-3g-40gb"}
    begun = _begun(slices_hub, "ben")
    page = ben.http.post(SLICES, params={"_xsrf": tools.xsrf(ben.http)}, data=form)
    assert page.status_code == 503
    assert "<strong>No 3g.40gb slice is free. It is in use.</strong>" in page.text
    assert 'href="/hub/spawn/ben?opt-profile=slice-2g-20gb">Start with 2g.20gb slice now</a>' in page.text
    answer = ben.api.post("users/ben/server", json=form)
    assert answer.status_code == 503
    words = "No 3g.40gb slice is free. It is in use. 2g.20gb slice is free now."
    assert answer.json()["message"] == words
    # the answer is the refusal itself: nothing was begun, so that there was nothing to wait for
    assert _begun(slices_hub, "ben") == begun
    assert list(holders(slices_hub)) == ["slice-3g.40gb-0"]
    assert states(ben.http.get(SLICES).text)["slice-3g-40gb"] == "No 3g.40gb slice is free. It is in use."
    began = time.monotonic()
    ben.http.get("/hub/spawn/ben?opt-profile=slice-2g-20gb")
    told = ben.api.get("users/ben/server/progress").text  # until it is ready
    assert "A slice 2g.20gb is yours (simulated)." in told
    wait_for("ben's session", lambda: ben.server().get("ready"), seconds=90, why=slices_hub.log)
    print(f"from the link to a ready session: {time.monotonic() - began:.1f} s")
    assert holders(slices_hub)["slice-2g.20gb-0"] == "session:ben:"
    ben.stop()
    assert list(holders(slices_hub)) == ["slice-3g.40gb-0"]


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (
            {"profile": "slice-9g"},
            400,
            "There is no profile 'slice-9g'. Profiles open to you: cpu, slice-1g-10gb",
        ),
        ({"profile": ["cpu"]}, 400, "The option profile is ['cpu'], not the name of one profile."),
        ({"profil": "cpu"}, 400, "There is no option 'profil' at the start of a session."),
        ({"profile": "whole-gpu"}, 403, "Whole GPU is for people in the group research."),
        ({"profile": "shared-gpu"}, 409, "Shares of a GPU are given out on a cluster only."),
    ],
)
def test_the_api_is_held_to_the_form(
    people: dict[str, Any], options: dict[str, Any], status: int, words: str
) -> None:
    answer = people["ben"].api.post("users/ben/server", json=options)
    assert answer.status_code == status
    assert answer.json()["message"].startswith(words)


def test_a_group_opens_a_profile(people: dict[str, Any], slices_hub: Any) -> None:
    file = slices_hub.home / "profiles.yaml"
    good = file.read_text()
    file.write_text(good.replace("groups: [research]", "groups: [ml]"))
    told = {name: states(people[name].http.get(SLICES).text)["whole-gpu"] for name in ("ben", "李雷")}
    assert told == {
        "ben": "Whole GPU is for people in the group ml.",
        "李雷": "This machine has no whole GPU.",
    }
    file.write_text(good)


def test_what_a_link_says_stays_text(people: dict[str, Any]) -> None:
    page = people["ben"].http.get("/hub/spawn/ben", params={"opt-profile": "<img src=x onerror=alert(1)>"})
    assert page.status_code == 400
    assert "<img src=x" not in page.text
    assert "&lt;img src=x" in page.text


def test_a_removed_profile_and_a_faulty_file_lock_nobody_out(people: dict[str, Any], slices_hub: Any) -> None:
    """One session: 李雷's saved choice is taken away, then the file is broken, then both are good again."""
    lei, file = people["李雷"], slices_hub.home / "profiles.yaml"
    lei.spawn(profile="slice-1g-10gb")
    lei.stop()
    good = file.read_text()
    file.write_text(good.replace("slug: slice-1g-10gb", "slug: small"))
    page = lei.http.get(SLICES).text
    assert "There is no profile &#39;slice-1g-10gb&#39;. CPU only is chosen instead." in page
    lei.spawn()  # a saved choice, not one that was made now
    state = lei.session()
    assert (state["SLICELIFT_PROFILE"], state["SLICELIFT_SLICE"]) == ("cpu", "")
    lei.stop()
    file.write_text(good.replace("cpu: 4", "cpu: four", 1))
    page = lei.http.get(SLICES).text
    assert "profiles.yaml:8: profiles[0].cpu is the text &#34;four&#34;" in page
    assert states(page)["small"] == "2 of 2 free."
    file.write_text(good)


def test_a_restarted_hub_keeps_the_slice_of_a_living_session(session: Any, slices_hub: Any) -> None:
    pid = session.pid()
    slices_hub.stop(signal.SIGKILL)
    slices_hub.start()
    wait_for("the session", lambda: session.server().get("ready"), why=slices_hub.log)
    assert session.pid() == pid
    assert holders(slices_hub) == {"slice-3g.40gb-0": "session:anna:"}
    session.stop()
    assert holders(slices_hub) == {}
    assert not Path(f"/proc/{pid}").exists() or _is_gone(pid)


def test_a_hub_killed_in_mid_spawn_leaves_neither_lease_nor_process(
    people: dict[str, Any], slices_hub: Any, tools: Any
) -> None:
    ben = people["ben"]
    with contextlib.suppress(httpx.ReadTimeout):  # the hub answers when the session is up
        ben.api.post("users/ben/server", json={"profile": "slice-2g-20gb"}, timeout=0.5)
    wait_for("its processes", lambda: _marked(slices_hub, tools), seconds=30, why=slices_hub.log)
    assert not ben.server().get("ready"), "the session was up before the hub could be killed"
    slices_hub.stop(signal.SIGKILL)
    assert holders(slices_hub) == {"slice-2g.20gb-0": "session:ben:"}
    orphans = _marked(slices_hub, tools)
    slices_hub.start()
    wait_for("the slice", lambda: not holders(slices_hub), seconds=30, why=slices_hub.log)
    assert all(_is_gone(pid) for pid in orphans)
    ben.spawn(profile="slice-2g-20gb")
    assert holders(slices_hub) == {"slice-2g.20gb-0": "session:ben:"}


def test_a_start_that_is_called_off_leaves_nothing(
    people: dict[str, Any], slices_hub: Any, tools: Any
) -> None:
    lei, holder = people["李雷"], "session:%E6%9D%8E%E9%9B%B7:"
    with contextlib.suppress(httpx.ReadTimeout):
        lei.api.post("users/李雷/server", json={"profile": "slice-1g-10gb"}, timeout=0.5)
    wait_for("the lease", lambda: holder in holders(slices_hub).values(), seconds=30, why=slices_hub.log)
    ledger = sqlite3.connect(slices_hub.home / "ledger.db", isolation_level=None)
    with contextlib.closing(ledger) as busy:
        # what the start took cannot be given back within the second that the hub waits for that
        busy.execute("BEGIN IMMEDIATE")
        assert lei.api.delete("users/李雷/server").status_code in (202, 204), slices_hub.log()
        busy.execute("ROLLBACK")
    wait_for("its end", lambda: holder not in holders(slices_hub).values(), seconds=30, why=slices_hub.log)
    assert not [
        env
        for _, env in tools.environments()
        if env.get("JUPYTERHUB_USER") == "李雷" and _is_of(slices_hub, env)
    ]


def test_a_session_that_dies_gives_its_slice_back(people: dict[str, Any], slices_hub: Any) -> None:
    """Also what it started and moved to a session of its own; and its token opens nothing any more."""
    ben = people["ben"]
    if not ben.server().get("ready"):
        ben.spawn(profile="slice-2g-20gb")
    marker = {"SLICELIFT_SESSION": ben.session()["SLICELIFT_SESSION"]}
    token = slices_hub.api(ben.session()["JUPYTERHUB_API_TOKEN"])
    assert token.get("user").status_code == 200
    left = subprocess.Popen(["sleep", "600"], env=os.environ | marker, start_new_session=True)
    os.kill(ben.pid(), signal.SIGKILL)
    wait_for("the slice", lambda: not holders(slices_hub), seconds=20, why=slices_hub.log)
    assert left.wait(10) == -signal.SIGKILL
    wait_for("the token to end", lambda: token.get("user").status_code == 403, seconds=20, why=slices_hub.log)


@pytest.mark.parametrize("by", ["stop", "kill"])
def test_what_a_terminal_detached_ends_with_the_session(
    people: dict[str, Any], slices_hub: Any, by: str
) -> None:
    """No mark, no parent, no terminal: nothing of it outlives the slice."""
    ben, line = people["ben"], f"sleep {600 + random.random():.9f}"
    if not ben.server().get("ready"):
        ben.spawn(profile="slice-2g-20gb")
    _in_a_terminal(ben, f"setsid env -i {line} & (setsid env -i sh -c '{line} & {line} &' &)")
    wait_for("three sleeps", lambda: len(_running(line)) == 3, seconds=30, why=slices_hub.log)
    if by == "stop":
        ben.stop()
    else:
        os.kill(ben.pid(), signal.SIGKILL)
        wait_for("the slice", lambda: not holders(slices_hub), seconds=20, why=slices_hub.log)
    assert _running(line) == []


def test_who_is_removed_while_the_hub_is_away_loses_the_session_at_its_next_start(
    people: dict[str, Any], slices_hub: Any
) -> None:
    lei = people["李雷"]
    lei.spawn(profile="slice-1g-10gb")
    pid = lei.pid()
    slices_hub.stop()
    Accounts(slices_hub.home).remove("李雷")
    slices_hub.start()
    assert _is_gone(pid)
    assert holders(slices_hub) == {}
    assert lei.api.get("user").status_code == 403


def _begun(hub: Any, name: str) -> tuple[int, ...]:
    """Of a start's first steps, what is there and from when: home, log of the session, row of the ledger."""
    files = (hub.home / "homes" / name, hub.home / "hub" / "sessions" / f"{name}.log")
    times = tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
    with sqlite3.connect(hub.home / "ledger.db", timeout=10) as database:
        (rows,) = database.execute(
            "select count(*) from sessions where holder = ?", [f"session:{name}:"]
        ).fetchone()
    return (*times, rows)


def _in_a_terminal(person: Any, line: str) -> None:
    """Type it into a new terminal of the session and close the page."""
    token = person.session()["JUPYTERHUB_API_TOKEN"]
    headers = {"Authorization": f"token {token}"}
    base = f"{person.http.base_url}/user/{person.name}".replace("//user", "/user")
    made = httpx.post(f"{base}/api/terminals", headers=headers, trust_env=False, timeout=60)
    assert made.status_code == 200, made.text
    url = f"ws{base.removeprefix('http')}/terminals/websocket/{made.json()['name']}"

    async def type_it() -> None:
        socket = await websocket_connect(HTTPRequest(url, headers=headers))
        await socket.write_message(json.dumps(["stdin", line + "\n"]))
        socket.close()
        while await socket.read_message() is not None:
            pass  # what the terminal still says, until the other side has closed as well

    asyncio.run(type_it())


def _running(line: str) -> list[int]:
    done = subprocess.run(["pgrep", "-xf", line], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def _marked(hub: Any, tools: Any) -> list[int]:
    return [pid for pid, env in tools.environments() if "SLICELIFT_SESSION" in env and _is_of(hub, env)]


def _is_of(hub: Any, env: dict[str, str]) -> bool:
    return env.get("HOME", "").startswith(str(hub.home))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
