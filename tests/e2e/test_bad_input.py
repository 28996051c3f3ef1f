"""Bad input: a code, a message, a hint with a way on, and nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def refused(done: Any, code: str, *told: str, exits: tuple[int, ...] = (1, 2)) -> None:
    """Exit status, code, message and hint are as they must be; each of `told` is in the words."""
    assert done.code in exits, done
    answer = done.json
    assert answer["code"] == code, done
    words = f"{answer['message']} {answer['hint']} {answer.get('detail', '')}"
    for part in told:
        assert part in words, done
    assert answer["hint"], done
    assert "Traceback" not in done.err + done.out


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def test_not_a_notebook(desk: Any) -> None:
    path = desk.project / "notebooks" / "no.ipynb"
    path.write_text("hello")
    done = desk.slicelift("promote", path, "--json")
    refused(done, "preflight-refused", "nb-invalid")
    path.unlink()


def test_no_such_file(desk: Any) -> None:
    refused(desk.slicelift("promote", "nowhere.ipynb", "--json"), "notebook-not-found", "nowhere.ipynb")


def test_empty_selection(desk: Any) -> None:
    path = desk.notebook("nothing.ipynb", ("x = 1", "skip"))
    refused(desk.slicelift("promote", path, "--json"), "preflight-refused", "empty-selection")


def test_no_git_then_the_offer(desk: Any, tmp_path: Path) -> None:
    path = tmp_path / "空 folder" / "n b.ipynb"
    path.parent.mkdir()
    shutil.copy(desk.notebook("plain.ipynb", "print('made it', 6 * 7)"), path)
    refused(desk.slicelift("promote", path, "--json"), "no-git", "--init-git")
    done = desk.slicelift("promote", path, "--init-git", "--wait", "--json")
    assert done.code == 0, done
    assert "made it 42" in desk.slicelift("logs", done.json["run_id"]).out


def test_no_commit_yet(desk: Any, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    path = tmp_path / "nb.ipynb"
    shutil.copy(desk.notebook("plain.ipynb", "print(1)"), path)
    refused(desk.slicelift("promote", path, "--json"), "no-commit", "--init-git")


def test_no_remote(desk: Any, own_desk: Any) -> None:
    (own_desk.project / "notebooks/.dvc/config").write_text("[core]\n    analytics = false\n")
    done = own_desk.slicelift("promote", "notebooks/quickstart.ipynb", "--json")
    refused(done, "dvc-remote-missing", "dvc remote add")


def test_remote_gone(own_desk: Any) -> None:
    (own_desk.project / ".build").rename(own_desk.project / ".away")
    refused(
        own_desk.slicelift("promote", "notebooks/quickstart.ipynb", "--json"),
        "dvc-remote-missing",
        "dvc-remote",
    )


def test_gang_too_large(desk: Any) -> None:
    done = desk.slicelift("promote", "notebooks/quickstart.ipynb", "--workers", "500", "--json")
    refused(done, "gang-too-large", "500", "--workers")


def test_parameters_of_the_wrong_type_or_name(desk: Any) -> None:
    done = desk.slicelift("promote", "notebooks/quickstart.ipynb", "-p", "epochs=ten", "--json")
    refused(done, "parameter-type", "epochs", "ten")
    done = desk.slicelift("promote", "notebooks/quickstart.ipynb", "-p", "epoch=3", "--json")
    refused(done, "parameter-unknown", "epoch", "epochs")


def test_snapshot_of_five_gigabytes(desk: Any, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    shutil.copy(desk.notebook("plain.ipynb", "print(1)"), tmp_path / "nb.ipynb")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    with (tmp_path / "everything.bin").open("wb") as big:
        big.truncate(5 * 2**30)
    refused(
        desk.slicelift("promote", tmp_path / "nb.ipynb", "--json"),
        "snapshot-too-large",
        "everything.bin",
        "dvc add",
    )


def test_no_torch_in_the_kernel(desk: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = tmp_path / "bare/bin/python"
    path = desk.notebook(
        "bare.ipynb", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    )
    refused(
        desk.slicelift("promote", path, "--workers", "2", "--python", python, "--json"),
        "torch-missing",
        str(python),
    )
    done = desk.slicelift("promote", path, "--workers", "1", "--python", python, "--wait", "--json")
    assert done.code == 0, done
    assert "rank 0 of 1" in desk.slicelift("logs", done.json["run_id"]).out


def test_a_kernel_without_slicelift(desk: Any, tmp_path: Path) -> None:
    """torch is there, slicelift is not: the runtime travels with the job."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "own")], check=True)
    python = tmp_path / "own/bin/python"
    site = next(Path(part) for part in sys.path if part.endswith("site-packages"))
    target = next((tmp_path / "own/lib").glob("python3*/site-packages"))
    (target / "borrowed.pth").write_text(f"{site}\n")
    probe = subprocess.run(
        [python, "-c", "import torch, slicelift"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "No module named 'slicelift'" in probe.stderr
    path = desk.notebook(
        "travels.ipynb",
        "import torch.distributed as dist\ndist.init_process_group('gloo')\nimport slicelift",
        "slicelift.log(step=0, loss=0.25)\nprint('logged by', dist.get_rank())",
    )
    done = desk.slicelift("promote", path, "--workers", "2", "--python", python, "--wait", "--json")
    assert done.code == 0, f"{done}\n{desk.slicelift('logs', 'last').out}"
    assert desk.mlflow(
        "select value from metrics where key = 'loss' and run_uuid = ?", done.json["mlflow_run_id"]
    ) == [(0.25,)]


def test_two_submits_of_one_promotion_id_are_one_job(desk: Any) -> None:
    path = desk.notebook("once.ipynb", "print('once')")
    promotion = "p-" + "a" * 20
    command = [sys.executable, "-m", "slicelift", "promote", str(path), "--promotion-id", promotion, "--json"]
    both = [
        subprocess.Popen(command, cwd=desk.project, env=desk.variables, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    assert desk.ledger("select count(*) from runs where promotion_id = ?", promotion) == [(1,)]
    desk.wait_for_status(promotion, "FINISHED")
    assert desk.ledger(
        "select count(*) from attempts where run_id = (select run_id from runs where promotion_id = ?)",
        promotion,
    ) == [(1,)]
    for process in both:
        assert process.stdout is not None
        process.stdout.close()


def test_secrets_are_used_and_never_shown(desk: Any) -> None:
    assert desk.slicelift("secrets", "set", "MY_TOKEN", stdin="correct-horse-battery\n").code == 0
    path = desk.notebook(
        "secret.ipynb",
        "import os\nprint('length', len(os.environ['MY_TOKEN']), 'value', os.environ['MY_TOKEN'])",
    )
    done = desk.slicelift("promote", path, "--secret", "MY_TOKEN", "--wait", "--json")
    assert done.code == 0, done
    log = desk.slicelift("logs", done.json["run_id"]).out
    assert "length 21 value ***" in log
    listed = desk.slicelift("secrets", "list", "--json")
    assert "MY_TOKEN" in listed.out
    shown = (
        done,
        listed,
        desk.slicelift("status", done.json["run_id"], "--json"),
        desk.slicelift("plan", path, "--secret", "MY_TOKEN", "--json"),
    )
    assert not any("correct-horse" in str(each) for each in shown)
    holders = subprocess.run(
        ["grep", "-rl", "correct-horse-battery", str(desk.home)], capture_output=True, text=True, check=False
    ).stdout.split()
    assert [Path(holder).name for holder in holders] == ["secrets.json"]
    assert (Path(holders[0]).stat().st_mode & 0o777) == 0o600
    assert desk.slicelift("secrets", "rm", "MY_TOKEN").code == 0
    refused(
        desk.slicelift("promote", path, "--secret", "MY_TOKEN", "--json"),
        "secret-unknown",
        "MY_TOKEN",
        "secrets set",
    )


def test_a_taken_port_is_named_with_its_option(own_desk: Any) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = own_desk.slicelift("up", "--no-hub", "--port", str(port), "--no-demo", "--json", timeout=60)
    refused(done, "port-taken", str(port), "--port")


def test_nothing_is_left_running(desk: Any) -> None:
    """After all of the above no process of a finished attempt lives."""
    marked = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            any(item.startswith(b"SLICELIFT_ATTEMPT=") for item in environment)
            and f"SLICELIFT_HOME={desk.home}".encode() in environment
        ):
            marked.append(folder.name)
    assert marked == [], os.environ.get("HOME")
