"""One rank, without torch: its namespace, its outputs, its errors, its end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for

NAMESPACE = """
    import inspect, multiprocessing, os, pathlib, pickle, sys
    from dataclasses import dataclass

    print("始", sys.argv, __name__, os.path.basename(__file__), __spec__, os.getcwd() == sys.path[0])
    import neighbour

    @dataclass
    class Point:
        x: int

    def double(point):
        return Point(point.x * 2)

    if __name__ == "__main__":
        assert sys.modules["__main__"].Point is Point
        assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
        assert "return Point" in inspect.getsource(double)
        assert not any(name in sys.modules for name in ("torch", "mlflow"))
        assert not any(os.path.basename(entry) == "runtime" and "slicelift" in entry for entry in sys.path)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print("pool", pool.map(double, [Point(1), Point(2)]))
        import atexit
        atexit.register(lambda: print("globals at exit", double(Point(4))))
        print("env", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], sys.stdin.read() == "")
        os.write(1, b"from C\\n"); print("to stderr", file=sys.stderr); os.system("echo from a child")
"""


def test_a_script_finds_what_it_would_find_without_us(attempt: Any) -> None:
    (attempt.work / "neighbour.py").write_text("print('neighbour', __name__)")
    assert attempt.run(NAMESPACE, arguments=("--lr", "0.1")) == 0
    assert attempt.outcome == {"exit_code": 0, "failures": []}
    script = str(attempt.work / "promoted.py")
    lines = attempt.log().splitlines()
    assert lines[0] == f"始 {[script, '--lr', '0.1']} __main__ promoted.py None True"
    assert lines[1] == "neighbour neighbour"
    assert [line for line in lines[2:] if not line.startswith(("始", "neighbour"))] == [
        "pool [Point(x=2), Point(x=4)]",
        "env 0 1 127.0.0.1 True",
        "from C",
        "to stderr",
        "from a child",
        "globals at exit Point(x=8)",
    ]
    assert any(line.startswith("始") and "__mp_main__" in line for line in lines)


def test_a_process_with_a_rank_of_its_own_logs_as_the_rank_it_belongs_to(attempt: Any) -> None:
    source = """
    import os, subprocess, sys
    import slicelift
    slicelift.log(outer=1.0)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "7", "8"
    nested = "import slicelift; slicelift.log(nested=1.0)"
    subprocess.run([sys.executable, "-c", nested], check=True)
    """
    assert attempt.run(source) == 0
    assert {name.partition("-")[0] for name in attempt.streams()} == {"0"}
    assert len(attempt.streams()) == 2
    assert {key for event in attempt.events() for key in event["m"]} >= {"outer", "nested"}


def test_registration(attempt: Any) -> None:
    import json

    assert attempt.run("import os; print(os.getpid())") == 0
    found = json.loads((attempt.root / "ranks" / "0.json").read_text())
    assert found["rank"] == 0
    assert found["pid"] == int(attempt.log())
    assert found["start_time"] > 0


def test_an_exception_is_told_three_times_without_our_frames(attempt: Any) -> None:
    source = """
    def inner():
        raise ValueError("坏 value \\udc80")

    inner()
    """
    assert attempt.run(source) == 1
    script = str(attempt.work / "promoted.py")
    log = attempt.log()
    assert log.startswith("Traceback (most recent call last):\n  File ")
    assert log.rstrip().endswith("ValueError: 坏 value \\udc80")
    assert "slicelift" not in log
    error = attempt.error()
    assert error["exception"] == "ValueError"
    assert error["text"] == "坏 value \\udc80"
    assert [(f["file"], f["line"], f["function"]) for f in error["frames"]] == [
        (script, 5, "<module>"),
        (script, 3, "inner"),
    ]
    assert error["message"]["message"] == "ValueError: 坏 value \\udc80"
    assert error["message"]["extraInfo"]["py_callstack"] == log
    (failure,) = attempt.outcome["failures"]
    assert failure == {
        "rank": 0,
        "exit_code": 1,
        "exception": "ValueError",
        "message": "坏 value \\udc80",
        "time": error["time"],
        "echo": False,
        "error": error,
    }
    assert time.time() - 60 < failure["time"] <= time.time()


def test_a_syntax_error_names_its_line(attempt: Any) -> None:
    assert attempt.run("x = 1\nif x\n") == 1
    assert attempt.error()["exception"] == "SyntaxError"
    assert attempt.error()["frames"][-1]["line"] == 2
    assert "slicelift" not in attempt.log()


@pytest.mark.parametrize(
    ("source", "code", "exception", "log"),
    [
        ("import sys; sys.exit(0)", 0, None, ""),
        ("import sys; sys.exit()", 0, None, ""),
        ("import sys; sys.exit(7)", 7, "SystemExit", ""),
        ("import sys; sys.exit('no data')", 1, "SystemExit", "no data\n"),
        ("import os; os._exit(5)", 5, "", ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt", "KeyboardInterrupt\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "", ""),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, "", "Fatal Python error: Segmentation fault"),
        ("import sys; sys.excepthook = 1 / 1; raise OSError('x')", 1, "OSError", "OSError: x\n"),
    ],
)
def test_ends(attempt: Any, source: str, code: int, exception: str | None, log: str) -> None:
    shell_code = attempt.run(source)
    assert shell_code == (code if code >= 0 else 128 - code)
    assert attempt.outcome["exit_code"] == code
    assert [failure["exception"] for failure in attempt.outcome["failures"]] == (
        [] if exception is None else [exception]
    )
    if log.endswith("\n"):
        assert attempt.log().endswith(log)
    else:
        assert log in attempt.log()


def test_a_child_that_the_script_forked_is_not_the_rank(attempt: Any) -> None:
    source = """
    import os
    pid = os.fork()
    if pid == 0:
        raise ValueError("child")
    os.waitpid(pid, 0)
    """
    assert attempt.run(source) == 0
    assert not (attempt.root / "errors" / "0.json").exists()


def test_points_of_forked_and_spawned_processes_have_their_own_streams(attempt: Any) -> None:
    source = """
    import multiprocessing, os, slicelift

    def work(index):
        slicelift.log(step=index, child=index)

    if __name__ == "__main__":
        slicelift.log(step=0, loss=1.0)
        for method in ("fork", "spawn"):
            for index in (1, 2):
                child = multiprocessing.get_context(method).Process(target=work, args=(index,))
                child.start(); child.join()
                assert child.exitcode == 0
        slicelift.log(step=1, loss=2.0)
    """
    assert attempt.run(source) == 0, attempt.log()
    streams = attempt.streams()
    assert sorted(len(events) for events in streams.values()) == [1, 1, 1, 1, 2]
    for events in streams.values():
        assert [event["q"] for event in events] == list(range(1, len(events) + 1))
        steps = [event["s"] for event in events]
        assert steps == ([0, 1] if len(events) == 2 else steps)
    children = [events[0] for events in streams.values() if len(events) == 1]
    assert sorted(event["m"]["child"] for event in children) == [1, 1, 2, 2]
    assert not any("step_time_seconds" in event["m"] for event in children)


def test_a_full_disk_ends_neither_log_nor_print(attempt: Any) -> None:
    source = """
    import resource, slicelift
    slicelift.log(step=0, loss=1.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
    for step in range(1, 50):
        slicelift.log(step=step, loss=1.0)
        print("line of output", step)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("done")
    """
    assert attempt.run(source) == 0
    assert attempt.log().endswith("done\n")
    events = attempt.events()
    assert [event["q"] for event in events] == list(range(1, len(events) + 1))
    kept = sum(len(event["m"]) for event in events if event["k"] == "m")
    dropped = sum(event["n"] for event in events if event["k"] == "dropped")
    assert dropped > 0
    assert kept + dropped == 50 + 49 * 2 + 1


def test_a_wrong_metric_is_told_to_the_user(attempt: Any) -> None:
    assert attempt.run("import slicelift; slicelift.log(step=1, loss='0.5')") == 1
    assert "The metric 'loss' is str; a metric is one real number." in attempt.log()
    assert attempt.error()["exception"] == "UserError"


def test_a_gang_that_is_told_to_end_says_so(attempt: Any) -> None:
    process = attempt.start("import time; print('up'); time.sleep(100)")
    log = attempt.root / "logs" / "rank-0.log"
    wait_for("its line", lambda: log.exists() and "up" in log.read_text())
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert attempt.outcome == {"exit_code": -signal.SIGTERM, "failures": []}


def test_a_module_named_like_ours_or_like_the_standard_librarys_is_the_users(attempt: Any) -> None:
    for name in ("model", "gang", "spool", "argparse"):
        (attempt.work / f"{name}.py").write_text(f"print('own {name}')")
    (attempt.work / "slicelift").mkdir()
    (attempt.work / "slicelift" / "__init__.py").write_text("raise SystemExit('shadowed')")
    assert attempt.run("import model, gang, spool, slicelift; slicelift.log(step=1, a=1)") == 0, attempt.log()
    assert attempt.log() == "own model\nown gang\nown spool\n"


def test_with_only_what_travels(attempt: Any, traveller: Path) -> None:
    source = "import slicelift; print(slicelift.__file__); slicelift.log(step=1, loss=2)"
    assert attempt.run(source, PYTHONPATH=str(traveller)) == 0
    assert attempt.log().startswith(str(traveller))
    assert attempt.events()[0]["m"]["loss"] == 2.0


def test_no_torch_error_file_of_an_outer_gang_is_touched(attempt: Any, tmp_path: Path) -> None:
    outer = tmp_path / "outer.json"
    assert attempt.run("raise ValueError", TORCHELASTIC_ERROR_FILE=str(outer)) == 1
    assert not outer.exists()
    assert os.listdir(attempt.root / "errors") == ["0.json"]


def test_a_rank_that_hangs_after_its_exception_is_ended(attempt: Any) -> None:
    source = """
    import threading, time
    import slicelift.runtime.script as script
    script.EXIT_SECONDS = 1  # a minute, for the test's sake shorter
    threading.Thread(target=time.sleep, args=(300,), name="for ever").start()
    raise ValueError("stuck")
    """
    assert attempt.run(source) == 1
    assert "ValueError: stuck\nTimeout (0:00:01)!\n" in attempt.log()
