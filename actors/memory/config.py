"""`MemoryConfig`: how sessions retrieve from long-term memory and save in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import PlainValidator, Strict

from turnwise.errors import ConfigError
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.longterm.base import Scope
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.values.checked_settings import Count, PositiveCount, PositiveSeconds, checked_settings

Setting = TypeVar("Setting")

Saved = Literal["all", "completed", "none"]

GroupSaves = Literal["author", "owner", "all", "none"]
"""Whose memories get what was said in a shared session: see `MemoryConfig.group_saves`."""


_PREFIX = "TURNWISE_MEMORY_"

_VARIABLES = {
    "TURNWISE_MEMORY_ENABLED": "AGENT_MEMORY_ENABLED",
    "TURNWISE_MEMORY_MAX_RESULTS": "AGENT_MEMORY_MAX_RESULTS",
    "TURNWISE_MEMORY_CATEGORIES": "AGENT_MEMORY_CATEGORIES",
    "TURNWISE_MEMORY_AGENT_SCOPE": "AGENT_MEMORY_AGENT_SCOPE_ENABLED",
}
"""The variables, each with the one of the CoALA memory of other agents that says the same and is read after it."""


def _from_environment(name: str, default: Setting, parse: Callable[[str], Setting]) -> Setting:
    """Return the value of `TURNWISE_MEMORY_<name>`; the default if it is not set or empty.

    If python-dotenv is installed, a variable that the environment lacks is looked up in the file `.env` of the working
    directory or, if there is none, of the nearest folder above it. The environment is not changed.

    Raises:
        ConfigError: the value is invalid, or a variable with this beginning is none of those that there are.
    """
    own = f"{_PREFIX}{name}"
    variables: Mapping[str, str | None] = {**_file(), **{key: value for key, value in os.environ.items() if value}}
    for variable in variables:
        if variable.startswith(_PREFIX) and variable not in _VARIABLES:
            raise ConfigError(variable, variables[variable], f"there is no such variable: use {', '.join(_VARIABLES)}")
    for variable in (own, _VARIABLES[own]):
        if text := (variables.get(variable) or "").strip():
            try:
                return parse(text)
            except (ValueError, KeyError) as error:
                raise ConfigError(variable, text, f"is not a valid value: {error}") from error
    return default


def _file() -> Mapping[str, str | None]:
    """Return the variables in the file `.env`; none if there is none, or python-dotenv is not installed."""
    try:
        from dotenv import dotenv_values, find_dotenv
    except ImportError:
        return {}
    path = ".env"
    try:
        path = find_dotenv(usecwd=True)
        return dotenv_values(path) if path else {}
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the file cannot be read: {error}; set the variables or mend the file"
        raise ConfigError(f"{_PREFIX}*", path, reason) from error


def _boolean(text: str) -> bool:
    words = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
    return words[text.lower()]


def _categories(text: str) -> tuple[MemoryCategory, ...]:
    return tuple(MemoryCategory(name.strip().lower()) for name in text.split(","))


def _known_categories(categories: Any) -> tuple[MemoryCategory, ...]:
    try:
        if isinstance(categories, str):
            raise TypeError("one text")
        members = tuple(map(MemoryCategory, categories))
    except (TypeError, ValueError):
        raise ValueError(f"must be a list of {', '.join(MemoryCategory)}") from None
    if not members:
        raise ValueError("must not be empty; memory=False recalls nothing")
    return members


@dataclass(frozen=True, kw_only=True)
@checked_settings("memory.")
class MemoryConfig:
    """Settings of what sessions recall and save.

    The defaults of the first four come from environment variables or, with python-dotenv, from a file `.env`. They are
    read when this is made: by a manager without a `config`, when the manager is made. `AGENT_MEMORY_ENABLED`,
    `AGENT_MEMORY_MAX_RESULTS`, `AGENT_MEMORY_CATEGORIES` and `AGENT_MEMORY_AGENT_SCOPE_ENABLED` are read, too, if the
    variable of turnwise is not set. Another `TURNWISE_MEMORY_*` is an error.
    """

    enabled: bool = field(default_factory=lambda: _from_environment("ENABLED", True, _boolean))
    """Whether sessions use their memories: `TURNWISE_MEMORY_ENABLED`."""

    max_results: PositiveCount = field(default_factory=lambda: _from_environment("MAX_RESULTS", 10, int))
    """How many items of each category each memory returns before a run at most: `TURNWISE_MEMORY_MAX_RESULTS`. So many
    facts do not displace what has happened."""

    categories: Annotated[Collection[MemoryCategory], PlainValidator(_known_categories)] = field(
        default_factory=lambda: _from_environment("CATEGORIES", tuple(MemoryCategory), _categories)
    )
    """The categories to recall, which may be given by name: `TURNWISE_MEMORY_CATEGORIES`, separated by commas.
    Read-only memories, whose items are for everyone, are always searched for all categories."""

    agent_scope: bool = field(default_factory=lambda: _from_environment("AGENT_SCOPE", True, _boolean))
    """Whether episodic and procedural items belong to the session's agent, rather than to all agents of the user:
    `TURNWISE_MEMORY_AGENT_SCOPE`."""

    recall: bool = True
    """Whether memories are searched automatically for each prompt before its run. Tools and programs may always
    recall."""

    max_tokens: PositiveCount = 2000
    """How many tokens the items of all memories may take in a request together: counted by `token_counter`, or as a
    quarter of their bytes without one. If not all items fit, the best item of each category of each memory comes first,
    then items by score; see `make_sections`. The profile is counted apart."""

    profile_tokens: Count = 500
    """How many tokens profiles may take in every request: facts about who the user is and how they want to be answered,
    and pinned items. 0 for no profile; without `recall` there is none. The profile is part of the share of the window
    that all memories have together."""

    timeout_s: PositiveSeconds = 2.0
    """How long a run waits for memories, in seconds; then it continues without them."""

    save: Saved = "all"
    """Which turns are saved automatically: all that stay in the history, those whose run completed, or none. Saving
    runs in the background, and a turn that could not be saved is saved later."""

    group_saves: GroupSaves = "author"
    """Whose memories get the turns of a shared session. `author`: each who has prompted gets the own prompts, and the
    answer. `owner`: the session's user gets whole turns, in which the prompts of others have their names. `all`: the
    user and all members get these. `none`: nobody. Other sessions are saved for their users alone."""

    keep_recalled: Annotated[bool, Strict()] = False
    """Whether the text that memories add to a run's requests is kept with its turn, in `Turn.metadata` as
    `turnwise.recalled`, and as `turnwise.front` what stands before the conversation: then a replay gives other engines
    the same (see `turnwise.replay`). It takes up to `max_tokens` and `profile_tokens` for each turn, and stays if a
    memory forgets an item."""

    planner_notes: Annotated[bool, Strict()] = False
    """Whether each note of an engine or a tool (`context.note`) is saved with its turn, as an item of type
    `planner_note`, which is episodic. Memories that extract facts keep notes as they are. Saving a turn then reads its
    run's events, from memory if the run is one of the last."""

    @property
    def types(self) -> tuple[MemoryType, ...] | None:
        """The types of the categories; None for all."""
        return _types_of(tuple(self.categories))


@cache
def _types_of(categories: tuple[MemoryCategory, ...]) -> tuple[MemoryType, ...] | None:
    chosen = tuple(kind for kind in MemoryType if kind.category in categories)
    return None if len(chosen) == len(MemoryType) else chosen


def shared_id(log: str) -> str:
    """Return what items of members name a session by: its log, as a member may have a session of the same id."""
    return f"shared-{log}"


def scopes_of(session: SessionRecord, config: MemoryConfig) -> list[Scope]:
    """Return the scopes of the session's user and of its members, whose memories may have what was said."""
    return [scope_of(session, config, person) for person in (None, *session.members)]


def scope_of(session: SessionRecord, config: MemoryConfig, author: str | None = None) -> Scope:
    """Return the scope of a session's items: its user, or the author, and with `agent_scope` the session's agent."""
    agent = session.agent if config.agent_scope else None
    if author in (None, session.user_id):
        return Scope(user_id=session.user_id, session_id=session.session_id, agent=agent)
    return Scope(user_id=str(author), session_id=shared_id(session.log), agent=agent)
