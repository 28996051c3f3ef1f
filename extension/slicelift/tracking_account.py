"""Whose things are whose in an MLflow that several people share: sign-in, and names that cannot collide.

MLflow's names of experiments and models are one for all. Each owner's begin with the owner's account, so nobody can
take another's name first; people see them without it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote

# Neither is ever in an account's name, which is percent-quoted. Models cannot hold a slash.
EXPERIMENT_MARK = "/"
MODEL_MARK = "!"
# no owner's account: that of the server's own administrator
OPERATOR = "slicelift!operator"


@dataclass(frozen=True, kw_only=True)
class Account:
    """An owner's account of MLflow. Without a `name` MLflow asks nobody who they are, and names stay as they are."""

    name: str = ""
    password: str = field(default="", repr=False)

    @property
    def login(self) -> tuple[str, str] | None:
        """User name and password for HTTP's basic scheme, None where none is needed."""
        return (self.name, self.password) if self.name else None

    def experiment(self, name: str) -> str:
        """What MLflow calls the owner's experiment `name`."""
        return f"{self.name}{EXPERIMENT_MARK}{name}" if self.name else name

    def model(self, name: str) -> str:
        """What MLflow calls the owner's registered model `name`."""
        return f"{self.name}{MODEL_MARK}{name}" if self.name else name

    def shown_experiment(self, name: str) -> str:
        """The owner's own word for an experiment of MLflow's; another's stays whole."""
        return name.removeprefix(f"{self.name}{EXPERIMENT_MARK}") if self.name else name

    def shown_model(self, name: str) -> str:
        """The owner's own word for a registered model of MLflow's; another's stays whole."""
        return name.removeprefix(f"{self.name}{MODEL_MARK}") if self.name else name


NO_ACCOUNT = Account()
_LONGEST_NAME = 255


def bounded(quoted: str) -> str:
    """A percent-quoted name as a name of at most 255 bytes, what a file system takes: itself, or cut with a digest.

    No two names become one: a quoted one has no `+`.
    """
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return f"{quoted[:99]}+{hashlib.sha256(quoted.encode()).hexdigest()[:32]}"


def make_account(secret: str, owner: str) -> Account:
    """The account of an owner. Always the same, so that nothing needs to be kept; unknowable without `secret`."""
    name = bounded(quote(owner, safe="@"))
    return Account(name=name, password=make_password(secret, name))


def make_password(secret: str, name: str) -> str:
    """The password of the account `name`."""
    return hmac.new(secret.encode(), f"mlflow account {name}".encode(), hashlib.sha256).hexdigest()


def is_password(secret: str, name: str, password: str) -> bool:
    """Whether it is; compared in constant time."""
    return hmac.compare_digest(make_password(secret, name).encode(), password.encode())
