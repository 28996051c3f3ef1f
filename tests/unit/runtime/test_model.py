"""save_model with the real MLflow, in processes of their own: loading it takes seconds, so one process does much."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from slicelift.errors import UserError
from slicelift.runtime import contents
from slicelift.runtime.model import save_model

pytestmark = pytest.mark.slow

LAYERS = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
    def forward(self, x):
        return self.norm(self.linear(x))
"""
SAVE = """
    import torch, slicelift
    from layers import Block

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()
        def forward(self, x):
            return self.block(x)

    class DistributedDataParallel(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    net = Net()
    torch.nn.init.constant_(net.block.linear.weight, 0.5)
    slicelift.log(step=7, loss=0.25, odd=float("nan"))
    first = slicelift.save_model(net, "数字 net")
    second = slicelift.save_model(DistributedDataParallel(net), "数字 net", example=torch.zeros(4, 3), metrics={"acc": 1})
    assert not first.exists()
    assert net.training and net.block.norm.training and net.block.norm.num_batches_tracked == 0
    from sklearn.linear_model import LogisticRegression
    print(slicelift.save_model(LogisticRegression().fit([[0], [1]], [0, 1])).name)
    print(second.name)
"""


class _Counter(http.server.BaseHTTPRequestHandler):
    hits = 0

    def do_POST(self) -> None:
        type(self).hits += 1
        self.send_error(500)

    do_GET = do_POST  # noqa: N815 - http.server's name

    def log_message(self, *_: Any) -> None:
        """Not on the test's output."""


@pytest.fixture(scope="module")
def saved(shared_attempt: Any) -> Any:
    """Models saved by rank 0 of a job whose tracker counts whoever asks it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Counter)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    (shared_attempt.work / "layers.py").write_text(LAYERS)
    tracker = f"http://127.0.0.1:{server.server_port}"
    try:
        code = shared_attempt.run(SAVE, MLFLOW_TRACKING_URI=tracker, SLICELIFT_MODEL_NAME="digits")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert code == 0, shared_attempt.log()
    return shared_attempt


def test_the_last_of_a_name_stays_and_nothing_else(saved: Any) -> None:
    assert saved.log() == "3-digits\n2-数字 net\n", "MLflow's advice is not the user's output"
    names = sorted(path.name for path in (saved.root / "models").iterdir() if path.name != ".lock")
    assert names == ["2-数字 net", "3-digits"]
    assert not (saved.work / "outputs").exists()
    assert not list(saved.work.glob("mlruns*"))


def test_no_server_was_asked(saved: Any) -> None:
    assert saved.events(), "the job has logged"
    assert _Counter.hits == 0


def test_description(saved: Any) -> None:
    folder = saved.root / "models" / "2-数字 net"
    about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert (about["name"], about["step"], about["metrics"]) == ("数字 net", 7, {"acc": 1.0})
    listing = subprocess.run(
        [
            "sha256sum",
            *sorted(
                str(p.relative_to(folder))
                for p in folder.rglob("*")
                if p.is_file() and p.name != "model.json"
            ),
        ],
        cwd=folder,
        capture_output=True,
        check=True,
    ).stdout
    assert about["model_digest"] == hashlib.sha256(listing).hexdigest()
    assert about["weights_file"] == "data/model.pth"
    assert about["weights_sha256"] == hashlib.sha256((folder / "data" / "model.pth").read_bytes()).hexdigest()
    sizes = {item["path"]: item["size_bytes"] for item in about["files"]}
    assert sizes["code/layers.py"] == len(LAYERS)
    assert about["size_bytes"] == sum(sizes.values())
    requirements = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in requirements} >= {"torch", "cloudpickle", "mlflow", "numpy"}
    assert not any("+" in line for line in requirements)


def test_metrics_default_to_the_last_logged_ones(saved: Any) -> None:
    about = json.loads((saved.root / "models" / "3-digits" / "model.json").read_text())
    assert about["metrics"].items() >= {"loss": 0.25, "odd": "NaN"}.items()
    assert about["weights_file"] == "model.pkl"


def test_the_models_load_where_the_project_is_not(saved: Any, tmp_path: Path) -> None:
    program = """
    import sys, mlflow, torch
    net = mlflow.pytorch.load_model(sys.argv[1])
    assert float(net.block.linear.weight[0, 0]) == 0.5 and not net.training
    assert "inputs" in str(mlflow.models.get_model_info(sys.argv[1]).signature)
    print(mlflow.sklearn.load_model(sys.argv[2]).predict([[1]]))
    """
    folders = [str(saved.root / "models" / name) for name in ("2-数字 net", "3-digits")]
    command = [sys.executable, "-c", textwrap.dedent(program), *folders]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[1]\n", done.stderr


@pytest.mark.parametrize("name", ["a/b", "a:b", ".hidden", " x", "x" * 201, "字" * 67, "a\nb"])
def test_names_that_no_registry_takes(name: str) -> None:
    with pytest.raises(UserError) as caught:
        save_model(object(), name)
    assert caught.value.code == "model-name"


def test_a_model_of_no_known_kind_lists_the_flavours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        save_model({"w": 1}, "x")
    assert caught.value.code == "model-flavor"
    assert "builtins.dict" in caught.value.message
    assert "pytorch, sentence_transformers, sklearn" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_other_ranks_do_nothing_at_once(attempt: Any) -> None:
    source = "import os, slicelift; os.environ['RANK'] = '1'; print(slicelift.save_model({'w': 1}, 'x'))"
    assert attempt.run(source) == 0, attempt.log()
    assert attempt.log() == "None\n"
    assert list((attempt.root / "models").iterdir()) == []


def test_without_mlflow_the_user_is_told_what_to_install(traveller: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(traveller)!r})
import slicelift
try:
    slicelift.save_model(print, "x", flavor="pyfunc")
except slicelift.UserError as error:
    print(error.code, error.hint)
"""
    command = [sys.executable, "-S", "-E", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("mlflow-missing Install it into the kernel's environment")
    assert os.listdir(tmp_path) == ["travel"]


def test_weights_are_the_largest_file_that_is_not_mlflows_text(tmp_path: Path) -> None:
    for name, size in {
        "MLmodel": 900,
        "code/big.py": 5000,
        "input_example.json": 7000,
        "model.pkl": 300,
        "a.bin": 20,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * size)
    found = contents.describe(tmp_path)
    assert found["weights_file"] == "model.pkl"
    assert [item["path"] for item in found["files"]] == sorted(item["path"] for item in found["files"])
