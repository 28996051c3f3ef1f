"""Credentials, devices, questions, widgets, tracking addresses, execution counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from slicelift.preflight import Report

Told = Callable[..., list[tuple[Any, ...]]]
KEY = "AKIA" + "NOTREAL0EXAMPLE9"
TOKEN = "hf_" + "MadeUpTokenForTestsOnly"


@pytest.mark.parametrize(
    "source",
    [
        f"x = '{KEY}'",
        f"f('{TOKEN}')",
        "db_password = 'spruce-42'",
        "connect(password='spruce-42')",
        "config = {'api_key': 'abcd1234efgh'}",
        "import os\nos.environ['MY_SECRET'] = 'abcd1234efgh'",
        "self_token: str = 'abcd1234efgh'",
        "def f(user, secret='abcd1234efgh'): ...",
        "%env WANDB_API_KEY=abcd1234efgh",
        "a, apiKey = 1, 'abcd1234efgh'",
        "url = 'postgresql://me:spruce42@host/db'",
        "key = '''-----BEGIN RSA PRIVATE KEY-----\nabc'''",
    ],
)
def test_credentials_are_found_and_not_repeated(source: str, look: Callable[..., Report]) -> None:
    report = look(f"f = connect = print\n{source}" if not source.startswith("%") else source)
    assert [f.severity.value for f in report.findings if f.code == "secret-in-source"] == ["error"]
    text = json.dumps(report.to_dict())
    assert not any(value in text for value in (KEY, TOKEN, "spruce-42", "abcd1234efgh", "spruce42"))


@pytest.mark.parametrize(
    "source",
    [
        "import os\npassword = os.environ['PASSWORD']",
        "token = None\npassword = ''\nsecret = 'changeme'\napi_key = '<your key>'\napi_token = 'your-token-here'",
        "tokenizer_name = 'small-bpe-v2'\npad_token = '[PAD] long'\neos_token = '</s>12345'\nmax_tokens = '12345678'",
        "password_field = 'password_input'\nkey = 'abcd1234efgh'\ntoken = 'two words here'",
    ],
)
def test_lookups_and_words_are_no_credentials(source: str, told: Told) -> None:
    assert told(source) == []


def test_a_credential_elsewhere_in_the_file_is_a_warning(told: Told) -> None:
    text = {"cell_type": "markdown", "source": f"Use {TOKEN}."}
    assert told("x = 1  # " + TOKEN.replace("T", "U"), (f"y = '{KEY}'", "skip"), text) == [
        ("warning", "secret-in-source", cell, 1) for cell in (0, 1, 2)
    ]


def test_a_secret_default_is_masked(look: Callable[..., Report]) -> None:
    report = look(("password = 'spruce-42'\nsteps = 3", "parameters"))
    assert report.to_dict()["parameters"] == {"password": "***", "steps": 3}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("d = 'cuda:1'", [("warning", "hardcoded-device", 0, 1)]),
        ("d = 'cuda'\ne = f'cuda:{0}'\n# cuda:0\nf = 'use cuda:0'\ng = 'cuda:' + '0'", []),
        ("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'", [("warning", "hardcoded-device", 0, 2)]),
        ("x = input()", [("error", "interactive-input", 0, 1)]),
        ("from getpass import getpass as ask\nask()", [("error", "interactive-input", 0, 2)]),
        ("import getpass\ngetpass.getpass()", [("error", "interactive-input", 0, 2)]),
        ("breakpoint()", [("error", "interactive-input", 0, 1)]),
        ("def f():\n    input()", [("warning", "interactive-input", 0, 2)]),
        ("def f():\n    input()\nf()", [("error", "interactive-input", 0, 2)]),
        ("def input(): return 1\ninput()", []),
        ("import mlflow\nmlflow.set_tracking_uri('http://x')", [("warning", "tracking-uri-literal", 0, 2)]),
        (
            "from mlflow import set_tracking_uri as s\nU = 'x'\ns(U)",
            [("warning", "tracking-uri-literal", 0, 3)],
        ),
        ("import mlflow, os\nmlflow.set_tracking_uri(os.environ['U'])\nmlflow.get_tracking_uri()", []),
        ("%env MLFLOW_TRACKING_URI=http://x", [("warning", "tracking-uri-literal", 0, 1)]),
    ],
)
def test_habits_of_a_session(source: str, found: list[Any], told: Told) -> None:
    assert told(source) == found


def test_what_only_shows_is_a_note(look: Callable[..., Report]) -> None:
    report = look(
        "from IPython.display import display as show, clear_output\nshow(1)\nclear_output()", "display(2)"
    )
    assert [(f.code, f.cell, f.line) for f in report.findings] == [
        ("display-only", 0, 2),
        ("display-only", 0, 3),
        ("display-only", 1, 1),
    ]


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([1, 2, 3], []),
        ([None, None], []),
        ([3, 2, 4], [("out-of-order", 1)]),
        ([1, 5, 3, 4], [("out-of-order", 2), ("out-of-order", 3)]),
        ([1, None, 2], [("not-executed", 1)]),
        ([1, None], []),
    ],
)
def test_execution_counts(counts: list[int | None], found: list[Any], look: Callable[..., Report]) -> None:
    cells = [{"source": f"x = {number}", "execution_count": count} for number, count in enumerate(counts)]
    assert [(f.code, f.cell) for f in look(*cells).findings] == found
