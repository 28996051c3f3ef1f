"""Names, labels and annotations of our objects: safe whatever a user typed, and never used twice."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from slicelift.errors import Refused

PREFIX = "volcano://"
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "slicelift"
RUN_LABEL = "slicelift.io/run"
OWNER_LABEL = "slicelift.io/owner-hash"
NOTE = "slicelift.io/"
# up to how many workers an elastic gang may be scaled
MOST_NOTE = "slicelift.io/most-workers"
# Volcano's own
JOB_NAME_LABEL = "volcano.sh/job-name"
RETRY_ANNOTATION = "volcano.sh/job-retry-count"

LONGEST = 63
# an annotation is for people and programs that look at the object, not a store
_LONGEST_NOTE = 1024
_JOB = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SLUG = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DIGITS_OF_HASH = 8
_LONGEST_SLUG = 32
_IMAGE = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def make_handle(namespace: str, job: str) -> str:
    """`volcano://<namespace>/<job>`."""
    return f"{PREFIX}{namespace}/{job}"


def parse_handle(handle: str) -> tuple[str, str] | None:
    """(namespace, job) of one of our handles; None for anything else."""
    namespace, slash, job = handle.removeprefix(PREFIX).partition("/")
    fits = handle.startswith(PREFIX) and slash and _JOB.fullmatch(job) and _LABEL.fullmatch(namespace)
    return (namespace, job) if fits and len(job) <= LONGEST else None


def check_job_name(name: str, *, task: str, replicas: int) -> str:
    """The same name if all that Volcano makes of it has a place in 63 characters. Raises Refused "bad-job-name".

    Its webhook lets a leading digit and a dot pass and counts one digit of the index only: such a job would stay
    Pending for minutes and then end without a word (volcano-sh/volcano#4691).
    """
    pod = f"{name}-{task}-{max(0, replicas - 1)}"
    if _JOB.fullmatch(name) and len(pod) <= LONGEST:
        return name
    hint = f"It has lower-case letters, digits and hyphens, begins with a letter, and {pod!r} at most {LONGEST} characters."
    raise Refused("bad-job-name", f"{name[:80]!r} cannot be the name of a Volcano job.", hint)


def check_image(image: str) -> str:
    """The same image if it is the name of one. Raises Refused "bad-image"."""
    if len(image) <= 512 and _IMAGE.fullmatch(image):
        return image
    message = f"{image[:100]!r} is not the name of an image." if image else "The job has no image to run in."
    hint = "Name it by digest, as in registry/name@sha256:..., in the spec, the preset, or c.Volcano.image."
    raise Refused("bad-image", message, hint)


def owner_hash(owner: str) -> str:
    """A label that tells owners apart, whatever their names are made of."""
    return hashlib.sha256(_bytes(owner)).hexdigest()[:16]


def namespace_of(template: str, owner: str) -> str:
    """`sl-{owner}` -> the namespace of that owner; a template without the word is one namespace for all.

    The slug is KubeSpawner's `safe_slug`, so that the jobs of a user lie beside the user's sessions.
    """
    return template.replace("{owner}", slug(owner))


def slug(text: str) -> str:
    """`text` itself if it can be part of a name, else what can be kept of it with a hash: no two texts collide."""
    if "--" not in text and len(text) <= LONGEST and _SLUG.fullmatch(text):
        return text
    digest = hashlib.sha256(_bytes(text)).hexdigest()[:_DIGITS_OF_HASH]
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-")
    room = _LONGEST_SLUG - _DIGITS_OF_HASH - 3
    kept = kept[:room].rstrip("-")
    if kept and not "a" <= kept[0] <= "z":
        kept = "x-" + kept[: room - 2]
    return f"{kept or 'x'}---{digest}"


def label_value(text: str) -> str:
    """`text` if it can be the value of a label, else a slug of it."""
    return text if len(text) <= LONGEST and (not text or _LABEL.fullmatch(text)) else slug(text)


def note(text: str) -> str:
    """`text` as an annotation: no control character, no half of a surrogate pair, cut where it grows too long."""
    plain = "".join(" " if unicodedata.category(mark) in ("Cc", "Cs") else mark for mark in text)
    return plain if len(plain) <= _LONGEST_NOTE else plain[: _LONGEST_NOTE - 1] + "…"


def literal(text: str) -> str:
    """`text` for a command or a variable's value, where Kubernetes would put a variable in place of `$(NAME)`."""
    return text.replace("$", "$$")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
