"""Checks of every name that comes from outside and ends in a path, a URL or an environment."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

from slicelift.errors import UserError
from slicelift.tracking_account import bounded

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PROMOTION = re.compile(r"p-[a-z2-7]{20}")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VERSION_ALIAS = re.compile(r"v\d+|latest", re.IGNORECASE)
_LONGEST_PATH = 1024
# names that would change how a rank starts rather than what it knows
_RESERVED = ("SLICELIFT_", "LD_", "PYTHON", "DYLD_")
_RESERVED_WORDS = ("PATH", "HOME", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def check_sha256(text: object) -> str:
    """64 lower-case hex digits, or `bad-digest`."""
    if isinstance(text, str) and _SHA256.fullmatch(text):
        return text
    raise UserError(
        "bad-digest", f"{_shown(text)} is not a sha256 digest.", "It has 64 lower-case hex digits."
    )


def check_path(text: object) -> str:
    """A relative POSIX path that stays inside its folder, or `bad-path`."""
    if isinstance(text, str) and _is_inside(text):
        return text
    hint = "Paths are relative, up to 1,024 characters, with no empty, `.` or `..` part, backslash or control character."
    raise UserError("bad-path", f"{_shown(text)} is not a path inside the project.", hint)


def check_promotion_id(text: object) -> str:
    """`p-` and 20 characters of base32, or `bad-promotion-id`."""
    if isinstance(text, str) and _PROMOTION.fullmatch(text):
        return text
    hint = "It is `p-` and 20 characters of a-z and 2-7; `slicelift promote` mints one."
    raise UserError("bad-promotion-id", f"{_shown(text)} is not a promotion id.", hint)


def check_secret_name(text: str) -> str:
    """The name of an environment variable that a job may be given, or `bad-secret-name`."""
    reserved = text.upper().startswith(_RESERVED) or text.upper() in _RESERVED_WORDS
    if _ENVIRONMENT.fullmatch(text) and not reserved:
        return text
    hint = "Use letters, digits and _, not beginning with a digit, SLICELIFT_, PYTHON or LD_, and not PATH or HOME."
    raise UserError("bad-secret-name", f"{_shown(text)} cannot be the name of a secret.", hint)


def check_alias(text: str) -> str:
    """A name for a model version, or `bad-alias`. MLflow keeps `latest` and `v1`, `v2`... for itself."""
    if _ALIAS.fullmatch(text) and not _VERSION_ALIAS.fullmatch(text):
        return text
    hint = "Use up to 64 letters, digits, - and _; `latest` and `v1`, `v2`... are reserved by MLflow."
    raise UserError("bad-alias", f"{_shown(text)} cannot be an alias.", hint)


def make_folder_name(owner: str) -> str:
    """One folder per owner, whatever the name: what is not plain is percent-encoded, so no two collide."""
    return bounded(quote(owner, safe="").replace(".", "%2E").replace("~", "%7E"))


def is_plain(text: str) -> bool:
    """No control character and no half of a surrogate pair; every other character of Unicode may be in a name."""
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def _is_inside(text: str) -> bool:
    parts = text.split("/")
    bad = {"", ".", ".."} & set(parts)
    return not bad and len(text) <= _LONGEST_PATH and is_plain(text) and "\\" not in text


def _shown(value: object) -> str:
    return repr(value if isinstance(value, str) else type(value).__name__)[:100]
