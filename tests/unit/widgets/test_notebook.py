"""What a user types in a notebook, in a real IPython shell and in a real kernel, over a real launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slicelift
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client import KernelManager
from slicelift.errors import NotFound, Refused, SliceliftError, Unavailable, UserError
from slicelift.launcher_client import find
from slicelift.models import RunView, Status, to_dict
from slicelift.widgets import live
from slicelift.widgets.bundle import JOBS_MIME, MIME
from slicelift.widgets.faults import fault_lines
from slicelift.widgets.place import own_notebook
from slicelift.widgets.shown import ShownRun

KERNEL_SECONDS = 60
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    """IPython without a terminal and without history on disk."""
    made = InteractiveShell.instance()
    made.history_manager.enabled = False
    made.run_line_magic("load_ext", "slicelift")
    yield made
    InteractiveShell.clear_instance()


@pytest.fixture(scope="module")
def run(launcher: Path, project: Path) -> ShownRun:
    """A run of the project's notebook that is over."""
    return slicelift.promote(project / "train.ipynb", parameters={"steps": 5}, name="by call").wait(60)


def test_promote_gives_a_run_that_shows_itself(run: ShownRun) -> None:
    assert run.status is Status.FINISHED
    assert isinstance(run, RunView)
    assert run.logs() == "trained 5\n"
    assert run == run.refresh()
    assert RunView(**{name: getattr(run, name) for name in run.__dataclass_fields__}) == run
    assert to_dict(run)["name"] == "by call"
    assert "_home" not in to_dict(run)
    assert repr(run).startswith("by call: Done. Finished in")
    bundle = run._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {MIME, "text/html", "text/plain"}
    assert bundle[MIME]["view"]["status"] == "FINISHED"


def test_a_run_survives_without_a_launcher(run: ShownRun, tmp_path: Path) -> None:
    lonely = ShownRun.of(run, home=tmp_path)
    assert lonely._repr_mimebundle_()[MIME]["run_id"] == run.run_id
    for call in (lonely.refresh, lonely.cancel, lonely.logs):
        with pytest.raises(Unavailable):
            call()
    assert lonely.wait() is lonely


def test_waiting_ends_in_time_and_by_cancel(launcher: Path, project: Path) -> None:
    path = project / "slow.ipynb"
    cells = json.loads((project / "train.ipynb").read_text())
    cells["cells"][1]["source"] = "import time\ntime.sleep(300)"
    path.write_text(json.dumps(cells))
    slow = slicelift.promote(path)
    path.unlink()
    with pytest.raises(UserError) as found:
        slow.wait(0.1)
    assert found.value.code == "still-running"
    ended = slow.cancel()
    assert (ended.status, slow.refresh()) == (Status.KILLED, ended)


def test_a_notebook_that_promotes_itself_makes_one_job(launcher: Path, project: Path) -> None:
    whole = json.loads((project / "train.ipynb").read_text())
    path = project / "itself.ipynb"
    sources = (
        "%load_ext slicelift\nimport slicelift",
        "run = %promote itself.ipynb",
        "%promote",
        "again = slicelift.promote()\nslicelift.show(again)\nslicelift.jobs()",
        "print(run.wait().reason, run.run_id == again.run_id)",
    )
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    whole["cells"] = [empty | {"id": f"c{n}", "source": source} for n, source in enumerate(sources)]
    path.write_text(json.dumps(whole))
    promoted = slicelift.promote(path)
    path.unlink()
    over = promoted.wait(60)
    assert over.status is Status.FINISHED, over.logs()
    said = "slicelift: promote, show and jobs are calls of a session; inside a job they do nothing.\n"
    assert over.logs() == said + "inside-a-job True\n"
    with find() as client:
        assert len([run for run in client.jobs(limit=200) if run.name == "itself"]) == 1


def test_the_magic_takes_the_options_of_the_command_line(
    run: ShownRun, shell: InteractiveShell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    shell.user_ns["count"] = 7
    promoted = shell.run_line_magic(
        "promote", "train.ipynb -p steps={count} --name 'by magic' --queue default"
    )
    assert isinstance(promoted, ShownRun)
    assert (promoted.name, promoted.spec.parameters, promoted.spec.workers) == ("by magic", {"steps": 7}, 1)
    assert promoted.wait(60).logs() == "trained 7\n"


def test_the_notebook_is_the_kernels_own(
    run: ShownRun, shell: InteractiveShell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", str(project / "train.ipynb"))
    # outputs of the first promotion are saved below the cell by now
    whole = json.loads((project / "train.ipynb").read_text())
    bundle = run._repr_mimebundle_()
    output = {"output_type": "execute_result", "data": bundle, "metadata": {}, "execution_count": 4}
    whole["cells"][1] |= {"outputs": [output], "execution_count": 4}
    before = (project / "train.ipynb").read_bytes()
    (project / "train.ipynb").write_text(json.dumps(whole))
    try:
        steps: list[Any] = []
        again = slicelift.promote(on_progress=steps.append)
    finally:
        (project / "train.ipynb").write_bytes(before)
    again.cancel()
    assert again.spec.snapshot_id == run.spec.snapshot_id
    assert "Uploaded: nothing, all of it is known" in [step.text for step in steps]


def test_which_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.ipynb").write_text("{}")
    with pytest.raises(UserError, match="was not told its notebook") as found:
        own_notebook({})
    assert (found.value.code, "Name it" in found.value.hint) == ("notebook-unnamed", True)
    assert own_notebook({"__vsc_ipynb_file__": str(tmp_path / "a.ipynb")}) == tmp_path / "a.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", "some folder/a.ipynb")
    assert own_notebook({}) == tmp_path / "a.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", "console-1.py")
    with pytest.raises(UserError, match="no notebook"):
        own_notebook({})
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "renamed.ipynb"))
    with pytest.raises(NotFound, match=r"renamed\.ipynb, and there is no such file") as lost:
        own_notebook({})
    assert "%promote train.ipynb" in lost.value.hint


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--workers many", "'many' is not a valid integer"),
        ("--no-such-option", "No such option"),
        ("-p steps", "'steps' is not NAME=VALUE"),
        ("'train.ipynb", "No closing quotation"),
        ("a.ipynb b.ipynb", "unexpected extra argument"),
    ],
)
def test_a_wrong_line_is_told_in_words(
    line: str, words: str, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    told = showed(shell, f"%promote {line}", capsys)
    assert words in told
    assert "[usage]" in told
    assert "`%promote --help` lists the options." in told
    assert "Traceback" not in told


def test_help_lists_the_options(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_line_magic("promote", "--help") is None
    told = capsys.readouterr().out
    assert told.startswith("Usage: %promote [OPTIONS] [NOTEBOOK]")
    for option in ("--workers", "--slice", "--gpus-per-worker", "--preset", "--queue", "-p,", "--secret"):
        assert option in told


def test_a_refusal_is_short_has_its_findings_and_can_be_caught(
    launcher: Path, project: Path, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.user_ns["path"] = str(project / "broken.ipynb")
    told = showed(shell, "import slicelift\nslicelift.promote(path)", capsys)
    lines = told.strip().splitlines()
    assert lines[0] == "broken.ipynb cannot be promoted: 2 errors; nothing was sent.  [preflight-refused]"
    assert "cell 2" in lines
    assert any("line 1: " in line and "[undefined-name]" in line for line in lines)
    assert any("line 2: " in line and "[magic-refused]" in line for line in lines)
    assert "Traceback" not in told
    with pytest.raises(Refused) as found:
        slicelift.promote(project / "broken.ipynb")
    assert fault_lines(found.value) == lines


def test_faults_of_the_training_calls_keep_their_traceback(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    told = showed(shell, "import slicelift\nslicelift.log(step=1, loss='high')", capsys)
    assert "Traceback" in told
    assert "slicelift.log(step=1, loss='high')" in told


def showed(shell: InteractiveShell, cell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the shell prints of the error that a cell ends with."""
    capsys.readouterr()
    shell.colors = "nocolor"
    result = shell.run_cell(cell)
    assert isinstance(result.error_in_exec, SliceliftError)
    return capsys.readouterr().out


def test_the_widgets_hold_what_the_card_needs(
    run: ShownRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "widget.js"
    script.write_text("export default { render() {} };")
    monkeypatch.setattr(live, "SCRIPT", script)
    monkeypatch.setattr(live, "_classes", [])
    card = slicelift.show(run.run_id)
    state = card.get_state(["view", "run_id", "snapshot", "_esm"])
    assert (state["view"], state["run_id"], state["_esm"]) == ("run", run.run_id, script.read_text())
    assert state["snapshot"]["view"]["status"] == "FINISHED"
    assert "page" not in card.get_state()
    data, _ = card._repr_mimebundle_()
    # a widget dies with its kernel; beside it is what lives from the launcher, and what needs neither
    assert set(data) == {WIDGET, MIME, "text/html", "text/plain"}
    assert data[MIME] == state["snapshot"]
    assert "by call" in data["text/html"]
    assert slicelift.show(run).run_id == slicelift.show(run.promotion_id).run_id == run.run_id
    assert slicelift.show().run_id.startswith("r-")
    listed = slicelift.jobs()
    assert listed.get_state(["view"]) == {"view": "jobs"}
    data, _ = listed._repr_mimebundle_()
    assert set(data) == {WIDGET, JOBS_MIME, "text/html", "text/plain"}
    assert run.run_id in data["text/html"]
    assert f"Done by call {run.run_id}: Finished in" in data["text/plain"]
    with pytest.raises(NotFound):
        slicelift.show("r-aaaaaaaaaaaa")


def test_without_anywidget_the_way_on_is_said_and_the_card_still_works(run: ShownRun) -> None:
    program = f"""
import sys
sys.modules["anywidget"] = None
import slicelift
from slicelift.errors import UserError
from slicelift.widgets.shown import ShownRun, find_run
print(sorted(ShownRun.of(find_run({run.run_id!r}))._repr_mimebundle_()))
try:
    slicelift.show({run.run_id!r})
except UserError as error:
    print(error.code, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "text/html" in done.stdout
    assert "anywidget-missing %pip install 'slicelift[notebook]'" in done.stdout


def test_a_widget_that_was_not_built_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(live, "SCRIPT", tmp_path / "none.js")
    monkeypatch.setattr(live, "_classes", [])
    with pytest.raises(SliceliftError, match="cannot be read") as found:
        slicelift.jobs()
    assert found.value.code == "widget-not-built"


@pytest.fixture(scope="module")
def kernel(launcher: Path, project: Path) -> Iterator[Any]:
    """A kernel as the Jupyter server starts one for the project's notebook."""
    manager = KernelManager(kernel_name="python3")
    told = {"JPY_SESSION_NAME": str(project / "train.ipynb")}
    manager.start_kernel(cwd=str(project), env=os.environ | told)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=KERNEL_SECONDS)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def outputs_of(client: Any, code: str) -> list[dict[str, Any]]:
    """All that a cell shows, in order."""
    asked = client.execute(code)
    found: list[dict[str, Any]] = []
    end = time.monotonic() + KERNEL_SECONDS
    while time.monotonic() < end:
        message = client.get_iopub_msg(timeout=KERNEL_SECONDS)
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return found
        found.append({"type": message["msg_type"], **message["content"]})
    raise AssertionError(found)


# a kernel's start and a promotion in it: some 5 s
def test_in_a_real_kernel_one_line_tells_how_far_it_is_and_the_card_comes_last(kernel: Any) -> None:
    found = outputs_of(kernel, "%load_ext slicelift\n%promote -p steps=2")
    told = [item for item in found if item["type"] in ("display_data", "update_display_data")]
    assert [item["type"] for item in told[:2]] == ["display_data", "update_display_data"]
    assert len({item["transient"]["display_id"] for item in told}) == 1
    assert told[0]["data"]["text/plain"].startswith("Promoting train.ipynb as it was saved ")
    assert "train.ipynb is run r-" in told[-1]["data"]["text/plain"]
    card = found[-1]
    assert card["type"] == "execute_result", found
    assert set(card["data"]) == {MIME, "text/html", "text/plain"}
    assert card["data"][MIME]["view"]["spec"]["parameters"] == {"steps": 2}


def test_progress_of_another_thread_lands_in_the_same_cell(kernel: Any) -> None:
    # as what is told of a launcher that starts meanwhile
    found = outputs_of(
        kernel,
        "import threading\nfrom slicelift.widgets.progress import progress_line\n"
        "with progress_line('one') as line:\n"
        "    other = threading.Thread(target=line.say, args=('two <b>',))\n    other.start()\n    other.join()\n"
        "    line.end('three')",
    )
    told = [item for item in found if "display_data" in item["type"]]
    assert [item["data"]["text/plain"] for item in told] == ["one", "two <b>", "three"]
    assert "two &lt;b&gt;" in told[1]["data"]["text/html"]


def test_in_a_real_kernel_a_refusal_is_no_traceback(kernel: Any) -> None:
    found = outputs_of(kernel, "import slicelift\nslicelift.promote('broken.ipynb')")
    error = next(item for item in found if item["type"] == "error")
    assert error["ename"] == "Refused"
    assert error["traceback"][0].endswith("[preflight-refused]")
    assert len(error["traceback"]) < 12
