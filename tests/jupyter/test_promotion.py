"""Check, plan and promote through the server and its warm worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.promoting import make_promotion_id
from tests.waiting import wait_for


def test_a_check_tells_findings_cells_and_parameters(desk: Any) -> None:
    answer = desk.post("check", path=desk.path)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["ok"] is True
    assert told["cells"] == {"travelling": 2, "code": 2}
    assert told["parameters"] == [
        {"name": "steps", "default": "3", "type": "int"},
        {"name": "rate", "default": "0.5", "type": "float"},
        {"name": "name", "default": "'x'", "type": "str"},
    ]
    assert told["kernel"]["name"] == "python3"
    assert told["seconds"] > 0


def test_a_check_is_of_the_file_as_it_is_now(desk: Any, tools: Any) -> None:
    path = desk.project / "wrong.ipynb"
    tools.make_notebook(path, "n = 1", "print(m)")
    told = desk.post("check", path="pro ject/wrong.ipynb").json()
    assert told["ok"] is False
    assert [(row["code"], row["cell"], row["line"], row["source"]) for row in told["findings"]] == [
        ("undefined-name", 1, 1, "print(m)")
    ]
    tools.make_notebook(path, "n = 1", "print(n)")
    assert desk.post("check", path="pro ject/wrong.ipynb").json()["ok"] is True
    path.unlink()


def test_a_secret_is_in_no_default(desk: Any, tools: Any) -> None:
    secret = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3g"
    tools.make_notebook(desk.project / "secret.ipynb", f"key = '{secret}'", "print(key)")
    answer = desk.post("check", path="pro ject/secret.ipynb")
    (desk.project / "secret.ipynb").unlink()
    assert "secret-in-source" in answer.text
    assert secret not in answer.text


def test_a_plan_tells_what_travels_and_submits_nothing(desk: Any) -> None:
    before = desk.get("api/jobs").json()
    answer = desk.post("plan", path=desk.path, request={"workers": 2, "parameters": {"rate": "nan"}})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["travels"]["code"]["branch"] == "main"
    assert told["travels"]["code"]["dirty_files"] == 0
    assert set(told["travels"]["code"]["to_upload"]) == {"files", "bytes"}
    assert told["travels"]["data"] == []
    assert told["travels"]["packages"]["pinned"] > 10
    assert told["spec"]["workers"] == 2
    assert told["spec"]["parameters"] == {"rate": "NaN"}
    assert told["manifest"]["kind"] == "Steered"
    assert told["position"] == 1
    assert told["capacity"]["slots"]["total"] == 64
    assert "range(steps)" in told["script"]
    assert desk.get("api/jobs").json() == before


def test_what_is_not_committed_is_counted(desk: Any) -> None:
    for name in ("new one.txt", "数.txt"):
        (desk.project / name).write_text(name)
    told = desk.post("plan", path=desk.path).json()
    for name in ("new one.txt", "数.txt"):
        (desk.project / name).unlink()
    assert told["travels"]["code"]["dirty_files"] == 2
    assert told["travels"]["code"]["to_upload"]["files"] >= 2


@pytest.mark.parametrize(
    ("request_", "code", "status"),
    [
        ({"workers": "two"}, "bad-request", 400),
        ({"workers": True}, "bad-request", 400),
        ({"python": "/bin/sh"}, "bad-request", 400),
        ({"preset": "none-such"}, "unknown-preset", 400),
        ({"parameters": {"none_such": 1}}, "parameter-unknown", 400),
        ({"workers": 99}, "gang-too-large", 422),
    ],
)
def test_a_plan_refused_says_why(desk: Any, request_: dict[str, Any], code: str, status: int) -> None:
    answer = desk.post("plan", path=desk.path, request=request_)
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code)
    assert body["message"]
    assert body["hint"]


def test_a_promotion_is_told_line_by_line(desk: Any) -> None:
    identity = make_promotion_id()
    lines = desk.promote(identity, workers=1, name="demo")
    steps = [line["step"]["name"] for line in lines if "step" in line]
    assert steps == ["preflight", "snapshot", "upload", "submit"]
    view = lines[-1]["view"]
    assert view["promotion_id"] == identity
    assert desk.get(f"api/jobs/{identity}").json()["run_id"] == view["run_id"]


def test_the_same_promotion_is_one_job_also_at_once(desk: Any) -> None:
    identity = make_promotion_id()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: desk.promote(identity), range(4)))
    runs = {lines[-1]["view"]["run_id"] for lines in answers}
    assert len(runs) == 1
    assert desk.promote(identity)[-1]["view"]["run_id"] in runs
    jobs = desk.get("api/jobs").json()["jobs"]
    assert [job["promotion_id"] for job in jobs].count(identity) == 1


def test_a_refused_promotion_ends_with_its_error(desk: Any, tools: Any) -> None:
    tools.make_notebook(desk.project / "wrong.ipynb", "n = 1", "print(m)")
    answer = desk.post("promote", path="pro ject/wrong.ipynb", promotion_id=make_promotion_id())
    (desk.project / "wrong.ipynb").unlink()
    error = json.loads(answer.text.splitlines()[-1])["error"]
    assert error["code"] == "preflight-refused"
    assert error["detail"]["findings"][0]["cell"] == 1


@pytest.mark.parametrize("identity", [None, "", "r-abc", "p-../../x"])
def test_a_promotion_needs_an_id(desk: Any, identity: str | None) -> None:
    answer = desk.post("promote", path=desk.path, promotion_id=identity)
    assert (answer.status_code, answer.json()["code"]) == (400, "promotion-id-invalid")


def test_a_page_that_goes_away_does_not_stop_it(desk: Any) -> None:
    identity = make_promotion_id()
    body = {"path": desk.path, "promotion_id": identity}
    with desk.http() as http, http.stream("POST", "promote", json=body) as answer:
        assert answer.status_code == 200
    wait_for("the job", lambda: desk.get(f"api/jobs/{identity}").status_code == 200)


def test_the_bytes_are_those_of_the_moment_of_the_call(desk: Any, tools: Any) -> None:
    identity = make_promotion_id()
    body = {"path": desk.path, "promotion_id": identity}
    notebook = desk.project / tools.notebook
    with desk.http() as http, http.stream("POST", "promote", json=body) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines))
        tools.make_notebook(notebook, *tools.cells, "print('later')")
        last = json.loads(list(lines)[-1])
    tools.make_notebook(notebook, *tools.cells)
    assert first["step"]["name"] == "preflight"
    snapshot = last["view"]["spec"]["snapshot_id"]
    kept = desk.get(f"api/snapshots/{snapshot}/files/.slicelift/promoted.py").text
    assert "range(steps)" in kept
    assert "later" not in kept


def test_calls_do_not_wait_for_each_other(desk: Any) -> None:
    """A plan that takes long must not hold up a check; many at once all come."""
    with ThreadPoolExecutor(6) as pool:
        calls = [("plan" if number % 2 else "check") for number in range(6)]
        answers = list(pool.map(lambda call: desk.post(call, path=desk.path), calls))
    assert [answer.status_code for answer in answers] == [200] * 6


def test_data_of_dvc_is_named_with_its_version(desk: Any, tmp_path: Path, tools: Any) -> None:
    """DVC in the warm process, three plans at once. 5 s: its command line takes one each time."""
    project = tools.make_project(desk.root / "with data")
    (project / ".dvc").mkdir()
    (project / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (project / ".dvc/config").write_text(
        f"[core]\n    remote = store\n['remote \"store\"']\n    url = {tmp_path}\n"
    )
    (project / "data.txt").write_text("1\n")
    dvc = [sys.executable, "-m", "dvc", "-q"]
    subprocess.run([*dvc, "add", "data.txt"], cwd=project, check=True, capture_output=True)
    path = f"with data/{tools.notebook}"
    refused = desk.post("plan", path=path)
    assert (refused.status_code, refused.json()["code"]) == (422, "data-not-pushed")
    subprocess.run([*dvc, "push"], cwd=project, check=True)
    with ThreadPoolExecutor(3) as pool:
        plans = list(pool.map(lambda _: desk.post("plan", path=path).json(), range(3)))
    for told in plans:
        [data] = told["travels"]["data"]
        assert (data["path"], data["nfiles"], data["remote"], data["proved"]) == (
            "data.txt",
            1,
            "store",
            True,
        )


def test_a_killed_worker_is_told_and_comes_back(
    make_desk: Callable[..., Any], launcher: Any, tmp_path: Path, tools: Any
) -> None:
    """The server is killed in the end, and takes the worker along. 5 s: a server of its own, as in a hub's session."""
    told = {"SLICELIFT_LAUNCHER_URL": launcher.url, "SLICELIFT_LAUNCHER_TOKEN": launcher.token}
    desk = make_desk(
        "--SliceliftServer.worker_delay_seconds=0", SLICELIFT_HOME=str(tmp_path / "none"), **told
    )
    for name in ("json.py", "slicelift.py", "httpx.py"):
        # what lies in the user's folder must not come before the library
        (desk.root / name).write_text("raise SystemExit('the wrong one')\n")
    wait_for("the worker", desk.workers)
    assert desk.post("check", path=desk.path).json()["ok"] is True
    [worker] = desk.workers()
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(desk.post, "check", path=desk.path)
        time.sleep(0.5)
        os.kill(worker, signal.SIGKILL)
        answer = under_way.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "worker-died")
    assert answer.headers["Retry-After"]
    assert desk.post("check", path=desk.path).json()["ok"] is True
    [second] = desk.workers()
    assert second != worker
    run = desk.promote(make_promotion_id())[-1]["view"]
    with launcher.client() as client:
        assert client.job(run["run_id"]).owner == run["owner"]
    # the hub's launcher was told of, so none was looked for
    assert not (tmp_path / "none").exists()
    desk.process.kill()
    desk.process.wait()
    wait_for("the worker to end", lambda: not tools.command_of(second), seconds=5)


def test_a_cold_launcher_is_started_and_the_plan_waits_for_it(
    make_desk: Callable[..., Any], tmp_path: Path, tools: Any
) -> None:
    """10 s: a launcher is started in the background, as in a plain JupyterLab."""
    home = tmp_path / "cold 家"
    desk = make_desk(SLICELIFT_HOME=str(home))
    assert desk.get("context").json()["launcher"] == "starting"
    answer = desk.get("api/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "launcher-starting")
    assert answer.headers["Retry-After"] == "1"
    told = desk.post("plan", path=desk.path).json()
    assert told["position"] == 1
    context = desk.get("context").json()
    assert (context["launcher"], context["queues"]) == ("up", ["default"])
    workers = desk.workers()
    assert len(workers) == 1
    desk.stop()
    wait_for("the worker to end", lambda: not tools.command_of(workers[0]), seconds=5)
    assert "Traceback" not in desk.log.read_text()
    # the launcher goes on without the server
    done = subprocess.run(
        [sys.executable, "-m", "slicelift", "down"],
        env=os.environ | {"SLICELIFT_HOME": str(home)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done


def test_lines_come_as_they_are_made(desk: Any) -> None:
    times: list[float] = []
    body = {"path": desk.path, "promotion_id": make_promotion_id()}
    with desk.http() as http, http.stream("POST", "promote", json=body) as answer:
        for line in answer.iter_lines():
            times.append(time.monotonic())
            assert json.loads(line)
    assert times[-1] - times[0] > 0.02
