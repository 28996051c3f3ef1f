"""Paths of the page: below the server's root and on disk, whatever they are called."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.services.contents.filemanager import AsyncFileContentsManager
from jupyter_server.services.contents.manager import ContentsManager
from slicelift.errors import SliceliftError
from slicelift.server.paths import notebook_path
from tornado.httpclient import HTTPClientError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root 根"
    (made / "a b").mkdir(parents=True)
    for name in ("a b/训练 1.ipynb", "a b/x%20y.ipynb", "top.ipynb", "a b/...ipynb"):
        (made / name).write_text("{}")
    (tmp_path / "outside.ipynb").write_text("{}")
    return made


@pytest.fixture
def contents(root: Path) -> AsyncFileContentsManager:
    return AsyncFileContentsManager(root_dir=str(root))


@pytest.mark.parametrize("path", ["a b/训练 1.ipynb", "a b/x%20y.ipynb", "/top.ipynb", "a b/...ipynb"])
def test_a_notebook_is_found(contents: Any, path: str) -> None:
    assert notebook_path(contents, path) == path.strip("/")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../outside.ipynb", "path-outside"),
        ("a b/../../outside.ipynb", "path-outside"),
        ("a\0b.ipynb", "path-outside"),
        ("none.ipynb", "notebook-not-found"),
        ("a b", "notebook-unreadable"),
        ("", "bad-argument"),
        ("/", "bad-argument"),
        (None, "bad-argument"),
        (["top.ipynb"], "bad-argument"),
        ("x" * 300 + ".ipynb", "notebook-not-found"),
    ],
)
def test_what_is_none_is_refused(contents: Any, path: Any, code: str) -> None:
    with pytest.raises(SliceliftError) as refused:
        notebook_path(contents, path)
    assert refused.value.code == code
    assert refused.value.hint


def test_an_absolute_path_is_taken_below_the_root(contents: Any, root: Path) -> None:
    with pytest.raises(SliceliftError) as refused:
        notebook_path(contents, str(root.parent / "outside.ipynb"))
    assert refused.value.code == "notebook-not-found"


def test_a_link_may_lead_outside_as_it_does_in_jupyter(contents: Any, root: Path) -> None:
    os.symlink(root.parent / "outside.ipynb", root / "link.ipynb")
    assert notebook_path(contents, "link.ipynb") == "link.ipynb"


def test_documents_that_are_no_files_are_refused_with_a_way_on() -> None:
    class Elsewhere(ContentsManager):
        pass

    with pytest.raises(SliceliftError) as refused:
        notebook_path(Elsewhere(), "a.ipynb")
    assert refused.value.code == "contents-not-files"


@pytest.mark.parametrize("call", ["check", "plan", "promote"])
async def test_every_call_says_it(jp_fetch: Any, call: str) -> None:
    body = json.dumps({"path": "no such 书.ipynb", "promotion_id": "p-" + "a" * 20})
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch(f"slicelift/{call}", method="POST", body=body)
    told = json.loads(refused.value.response.body)
    assert (refused.value.code, told["code"]) == (404, "notebook-not-found")
    assert "no such 书.ipynb" in told["message"]


@pytest.mark.parametrize(
    "body", ["{", "[]", "7", "\\ud800", r'{"path": "\ud800"}', r'{"parameters": {"\uDFFF": 1}}']
)
async def test_a_body_that_is_no_object(jp_fetch: Any, body: str) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("slicelift/check", method="POST", body=body)
    assert json.loads(refused.value.response.body)["code"] == "bad-json"
