"""`Split`: a share of users, sessions or labels has another engine, and keeps it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.actors.inference.engine import InferenceRunner, SessionView
from turnwise.errors import ConfigError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.values.frozen_json import FrozenDict

LABEL = "label:"
"""What `by` begins with if a label of the run decides; the label's name follows."""

_HASH_BITS = 64


@dataclass(frozen=True)
class Split:
    """Divides runs among engines that a manager has by name, in shares: `Split({"a": 0.9, "b": 0.1}, by="user")`.

    It stands among the manager's engines under a name of its own; sessions of that name have one of its engines:
    `SessionManager(engine={"main": Split({"a": 0.9, "b": 0.1}), "a": ..., "b": ...})`. The choice is a hash without any
    state, so each process makes the same. Changed shares move as few users as possible: those of an engine whose share
    grows stay with it. The run's record has the name of the chosen engine.

    Args:
        shares: by the name of an engine, a number from 0; only their relations count. An engine with 0 gets no run.
        by: whose runs have the same engine: "user", the session's user; "session"; or "label:NAME", all runs with the
            same value of this label. A run without the label goes by its session.
        salt: a text that makes the choice another one, so that two splits do not choose the same users.

    Raises:
        ConfigError: there is no share above 0, or `by` is something else.
    """

    shares: Mapping[str, float]
    by: str = "user"
    salt: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.shares, Mapping) or not all(map(_is_share, self.shares.values())):
            raise ConfigError("shares", self.shares, "pass names of engines, each with a finite number from 0")
        if not any(self.shares.values()):
            raise ConfigError("shares", dict(self.shares), "one of them must be above 0")
        is_label = isinstance(self.by, str) and self.by.startswith(LABEL) and self.by != LABEL
        if not is_label and self.by not in ("user", "session"):
            raise ConfigError("by", self.by, 'must be "user", "session", or "label:" with the name of a label')
        object.__setattr__(self, "shares", FrozenDict(self.shares))

    def choose(self, session: SessionKey, labels: Mapping[str, str]) -> str:
        """Return the name of the engine of a run of this session, with these labels."""
        label = labels.get(self.by.removeprefix(LABEL)) if self.by.startswith(LABEL) else None
        subject: tuple[object, ...] = ("user", session.user_id) if self.by == "user" else ("session", *session)
        if label is not None:
            subject = ("label", label)
        return max(self.shares, key=lambda name: (self._weight(name, subject), name))

    def _weight(self, name: str, subject: tuple[object, ...]) -> float:
        """Return a number that is the highest for each engine as often as its share says.

        It depends on the engine's own share only (weighted rendezvous hashing), so another share moves nobody between
        two others.
        """
        if not self.shares[name]:
            return -math.inf
        digest = hashlib.sha256(repr((self.salt, name, subject)).encode("utf-8", "backslashreplace")).digest()
        uniform = (int.from_bytes(digest[: _HASH_BITS // 8]) + 1) / (2**_HASH_BITS + 1)
        return self.shares[name] / -math.log(uniform)

    def build(self, session: SessionView) -> InferenceRunner:
        """Raise ConfigError: it stands among named engines, of which one is built."""
        reason = f"session {session.session_id!r} has it as its engine: give it a name beside the engines that it names"
        raise ConfigError("engine", "Split", f'{reason}, as in engine={{"main": Split(...), "a": ...}}')


def _is_share(share: object) -> bool:
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    return is_number and 0 <= share < math.inf  # type: ignore[operator]
