"""Reading the JSON body of a call, for the launcher and the Jupyter server alike: errors only, so both may import it."""

from __future__ import annotations

import json
import re
from typing import Any

from slicelift.errors import UserError

_HINT = "Send a JSON object."
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; an empty one is `{}`. Raises `bad-json`.

    Half of a surrogate pair (`"\\ud800"`), which JSON can write and no file, database or environment can take, is refused
    here once for all fields.
    """
    try:
        text = raw.decode("utf-8-sig")
        value = json.loads(text) if text.strip() else {}
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        message = "The body has half of a surrogate pair in a text, which is no character."
        raise UserError("bad-json", message, "Send whole characters.") from error
    except (ValueError, RecursionError) as error:
        raise UserError("bad-json", f"The body is no JSON: {error}.", _HINT) from error
    if not isinstance(value, dict):
        raise UserError("bad-json", f"The body is a {type(value).__name__}.", _HINT)
    return value
