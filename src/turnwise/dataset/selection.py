"""`Selection`: which conversations come along as examples, and what of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.sessions import SessionRecord

DatasetKind = Literal["chat", "preference", "tools"]
"""Conversations as people saw them; pairs of a better and a worse answer to the same prompt; conversations in which
tools were called, with the calls and their results."""

DatasetFormat = Literal["openai", "trl"]
"""The JSON Lines of OpenAI's fine-tuning; the columns of Hugging Face's TRL."""

MAX_TURNS = 10_000
"""The most turns that one example may have."""


def thumb(value: Any) -> float | None:
    """Return what a mark says about an answer: 1 for "up" and true, -1 for "down" and false; None for all else."""
    if isinstance(value, bool):
        return 1.0 if value else -1.0
    return {"up": 1.0, "down": -1.0}.get(value) if isinstance(value, str) else None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which conversations come along, and what of them; see `Examples`, whose arguments these are."""

    consent: Mapping[str, Any] | None
    """The metadata by which a session says that it may be learnt from, such as `{"training": "yes"}`. None takes all
    sessions along, whether their users have consented or not."""
    kind: DatasetKind = "chat"
    format: DatasetFormat = "openai"
    user_id: str | None = None
    """Only sessions of this user."""
    agent: str | None = None
    """Only sessions of this agent."""
    agents: bool = False
    """Whether sessions that tools of others have called are among them. They consent like all others."""
    since: float | None = None
    """Only sessions that were changed at this time or later, in seconds since the epoch."""
    until: float | None = None
    """Only sessions that were not changed at this time or later."""
    authors: Collection[str] = ()
    """Members of shared sessions whose words come along. A session consents for its own user only: where others say
    something, its conversation ends."""
    system: bool | str = True
    """Whether system prompts that are stored in the conversation come along; or the text that is put in their place.
    Those of engines are not stored."""
    redact: Callable[[str], str | None] | None = None
    """Gets each text: prompts, answers, system prompts, each text and number in a call's arguments, each result.
    Returns the text that comes along; None leaves the whole example out."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Of `kind="tools"`: the tools of the model, as declared to OpenAI; those of the manager's engines if empty. Tools
    of single runs are added."""
    tool_results: bool = True
    """Whether results of tools come along; otherwise a text says that they are left out."""
    mark: str = "thumb"
    """The name of the marks that say how good an answer is."""
    marked_by: Collection[str] | None = None
    """Only marks that these have set count; all if None."""
    score: Callable[[Any], float | None] = thumb
    """Returns how good the value of a mark is: above 0 for good, below for bad, None if it says nothing. Of stars:
    `lambda stars: stars - 3`."""
    replaced_is_worse: bool = True
    """Whether an answer that `rerun` has replaced is worse than the one that is shown, if neither has a mark."""
    max_turns: int = 100
    """How many turns an example has at most; a longer conversation is several examples."""

    def __post_init__(self) -> None:
        for name, kinds in (("kind", get_args(DatasetKind)), ("format", get_args(DatasetFormat))):
            if getattr(self, name) not in kinds:
                raise InvalidInputError(name, shown(getattr(self, name)), f"must be one of {', '.join(kinds)}")
        if self.consent is not None and not (isinstance(self.consent, Mapping) and self.consent):
            reason = "pass the metadata by which sessions consent, such as {'training': 'yes'}; None takes all along"
            raise InvalidInputError("consent", shown(self.consent), reason)
        for name in ("authors", "marked_by"):
            if isinstance(getattr(self, name), str):
                raise InvalidInputError(name, shown(getattr(self, name)), "pass a list of user ids")
        if not isinstance(self.max_turns, int) or not 1 <= self.max_turns <= MAX_TURNS:
            raise InvalidInputError("max_turns", shown(self.max_turns), f"must be from 1 to {MAX_TURNS}")

    def consents(self, session: SessionRecord) -> bool:
        """Return whether a session's metadata says that it may be learnt from."""
        return self.consent is None or all(
            name in session.metadata and session.metadata[name] == value for name, value in self.consent.items()
        )

    def is_in_time(self, session: SessionRecord) -> bool:
        """Return whether the session's last change is between `since` and `until`."""
        is_late = self.since is None or session.updated_at >= self.since
        return is_late and (self.until is None or session.updated_at < self.until)
