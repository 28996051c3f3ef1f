"""IPython's translation keeps its line numbers, and agrees with IPython's own."""

from __future__ import annotations

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from slicelift.notebook.translate import translate


@pytest.mark.parametrize(
    ("source", "origins"),
    [
        ("a\nb", (1, 2)),
        ("\n\n  a\n  b", (3, 4)),
        (">>> a\n... b\n>>> c", (1, 2, 3)),
        ("In [1]: a\n   ...: b", (1, 2)),
        ("%pip install \\\n  x \\\n  y\nz", (1, 4)),
        ("a = !ls \\\n  -l\nb", (1, 3)),
        ("a\nb?\nc", (1, 2, 3)),
        ("(a +\n %b)\n%c", (1, 2, 3)),
        ("'''\n%x\n'''\n%y", (1, 2, 3, 4)),
        ("%%time\na\nb", (1,)),
        ("x = '\\\u2028'\n%y", (1, 2)),
        ("if a:\n    total = 1\n\tif b:", (1, 2, 3)),
    ],
)
def test_each_line_has_its_origin(source: str, origins: tuple[int, ...]) -> None:
    assert translate(source).origins == origins


@pytest.mark.parametrize(
    "source",
    [
        "a = 1\n%time b\n!ls\nc?",
        ">>> x = '''\n... a\n... '''\n>>> %cd x",
        "  %%time\n  a",
        "/f x\n,g a b\n;h a b",
        "x = '\x0c%y'\n%z",
        "a\r%b",
        "",
        "# only",
    ],
)
def test_the_text_is_ipythons_own(source: str) -> None:
    assert "".join(f"{line}\n" for line in translate(source).lines) == TransformerManager().transform_cell(
        source
    )


def test_a_cell_magic_tells_where_its_body_is() -> None:
    assert translate("\n\n%%time\na\n\nb").body == (4, 5, 6)


@pytest.mark.parametrize(
    ("source", "bound", "is_magic"),
    [
        ("ls", (), True),
        ("pip install x", (), True),
        ("ls\n", (), True),
        ("ls\n\n", (), False),
        ("# first\nls", (), False),
        ("ls = 3", (), False),
        ("who", ("who",), False),
        ("frobnicate x", (), False),
        ("writefile x", (), False),
    ],
)
def test_one_line_may_be_a_magic_without_its_sign(
    source: str, bound: tuple[str, ...], is_magic: bool
) -> None:
    assert (
        "run_line_magic" in translate(source, bound=bound).lines[0 if source[0] != "#" else -1]
    ) is is_magic


NUMBERS = f"d = [{','.join(['1'] * 20_000)}]"


@pytest.mark.parametrize(
    "source", [NUMBERS, "d = " + "-" * 20_000 + "1", f"%%writefile d.py\n{NUMBERS}", "s = '%x?'\n# !x"]
)
def test_plain_python_is_never_cut_into_tokens(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token holds its whole line: 500,000 numbers on one took 15 GB."""

    def cut(*_: object) -> None:
        raise AssertionError("the tokenizer was asked")

    monkeypatch.setattr(TransformerManager, "do_one_token_transform", cut)
    translated = translate(source)
    assert (translated.too_long, translated.origins[0]) == (0, 1)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (f"%time x\n{NUMBERS}", 2),
        (f"\n\n{NUMBERS}\nd = (", 3),
        (f"%time x\nd = '{'x' * 1_000_000}'", 0),
        (f"%time x\nd = [{','.join(['1'] * 5000)}]", 0),
        ("%time x = 1\n" * 20, 0),
    ],
)
def test_a_line_too_long_for_tokens_is_named(source: str, line: int) -> None:
    assert translate(source).too_long == line
