"""Passwords, keys and tokens that stand in the source. Their values are never repeated in any message."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from slicelift.models import Finding, Severity
from slicelift.notebook.document import Cell
from slicelift.notebook.static import dotted
from slicelift.preflight.view import View

MASK = "***"
# Shapes that the issuers document; each is long enough to mean nothing else.
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"  # AWS access key id
    r"|hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"  # GitHub
    r"|glpat-[A-Za-z0-9_-]{18,}"  # GitLab
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{24,}"  # OpenAI, Anthropic
    r"|AIza[A-Za-z0-9_-]{35}"  # Google
    r"|npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{20,}"  # package registries
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"  # a signed web token
    r")"
    r"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"
    r"|(?<=://)[^/\s:@{}]+:[^/\s:@{}]+(?=@)"  # user:password@ in a URL
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PASSWORDS = frozenset({"password", "passwd", "pwd", "passphrase", "passcode"})
_TOKENS = frozenset({"token", "secret", "apikey", "credential", "credentials"})
_KEYS = frozenset({("api", "key"), ("access", "key"), ("secret", "key"), ("private", "key"), ("auth", "key")})
# Words before `token` that make it a word of a text and no credential.
_TEXT_TOKENS = """
pad eos bos unk sep cls mask start end stop special sos image next last first new extra eot im prompt
"""
_EMPTY = re.compile(
    r"(?i)^(|x+|\*+|\.+|-+|none|null|todo|changeme|change[-_ ]me|secret|password|token|test|dummy)$"
)
_PLACEHOLDER = re.compile(
    r"(?i)^[<\[{$].*|.*[>\]}]$|^your[-_ ]|^(my|the|some)[-_ ]?(secret|token|password|api)"
)
_NAMING: tuple[type[ast.AST], ...] = (
    ast.Assign,
    ast.AnnAssign,
    ast.NamedExpr,
    ast.keyword,
    ast.Dict,
    ast.arguments,
    ast.Call,
)
_FIX = 'Keep it out of the notebook: `slicelift secrets set NAME`, and read os.environ["NAME"].'


def check_credentials(view: View) -> tuple[list[Finding], set[str]]:
    """The findings, and the values themselves, for masking."""
    findings: dict[tuple[object, ...], Finding] = {}
    values: set[str] = set()
    for node, value, told in _found(view):
        finding = view.finding("secret-in-source", Severity.ERROR, node=node, message=told, fix=_FIX)
        findings.setdefault((finding.cell, finding.line, finding.file), finding)
        values.add(value)
    return list(findings.values()), values


def check_text(cells: Iterable[Cell], *, found: Collection[str]) -> tuple[list[Finding], set[str]]:
    """Well-known token shapes in text, comments and code that is not promoted: they travel in the notebook file.

    `found` are values that were reported already.
    """
    findings: list[Finding] = []
    values: set[str] = set()
    for cell in cells:
        for number, line in enumerate(cell.source.split("\n"), start=1):
            match = _SHAPES.search(line)
            if match and match[0] not in found:
                values.add(match[0])
                findings.append(_in_text(cell, number))
    return findings, values


def masked(text: str, values: Iterable[str]) -> str:
    """`text` without these values and without anything that has a credential's shape."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return _SHAPES.sub(MASK, text)


def _in_text(cell: Cell, line: int) -> Finding:
    return Finding(
        code="secret-in-source",
        severity=Severity.WARNING,
        message="This looks like a credential; it is not run, but it travels inside the notebook file.",
        cell=cell.index,
        line=line,
        fix=_FIX,
    )


def _found(view: View) -> Iterator[tuple[ast.AST, str, str]]:
    """Node, value and message of every credential."""
    for node in view.of(*_NAMING):
        for name, value, text in _named_values(node):
            if _is_credential(name, text):
                yield value, text, f"{name} is given a literal value that looks like a credential."
    for constant in view.of(ast.Constant):
        match = _SHAPES.search(constant.value) if isinstance(constant.value, str) else None
        if match:
            yield constant, match[0], "This text looks like a credential."


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.Constant, str]]:
    """A name, the literal it is given, and the text of that."""
    for name, value in _pairs(node):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield name, value, value.value


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        yield _name(node.target), node.value
    elif isinstance(node, ast.keyword):
        yield node.arg or "", node.value
    elif isinstance(node, ast.Dict):
        yield from ((_name(key), value) for key, value in zip(node.keys, node.values, strict=True) if key)
    elif isinstance(node, ast.arguments):
        plain = [*node.posonlyargs, *node.args]
        pairs = [*zip(reversed(plain), reversed(node.defaults), strict=False)]
        yield from (
            (arg.arg, value) for arg, value in [*pairs, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        )
    elif isinstance(node, ast.Call) and dotted(node.func).endswith(("environ.setdefault", "putenv")):
        yield (_name(node.args[0]), node.args[1]) if len(node.args) == 2 else ("", None)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for pair in zip(target.elts, value.elts, strict=False):
            yield from _targets(*pair)
    else:
        yield _name(target), value


def _name(node: ast.AST) -> str:
    """The name a value goes under: a variable, an attribute, a key."""
    if isinstance(node, ast.Subscript):
        return _name(node.slice)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return dotted(node).rpartition(".")[2]


def _is_credential(name: str, value: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    text = value.strip()
    if not words or _EMPTY.match(text) or _PLACEHOLDER.match(text) or text.lower() == name.lower():
        return False
    if words[-1] in _PASSWORDS:
        return len(text) >= 4
    token = words[-1] in _TOKENS and not (len(words) > 1 and words[-2] in _TEXT_TOKENS.split())
    return (token or tuple(words[-2:]) in _KEYS) and len(text) >= 8 and " " not in text
