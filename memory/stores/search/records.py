"""What a store that can search keeps of a message, what it is asked, and what it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from turnwise.errors import InvalidInputError, SearchUnavailableError, shown
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Spans, join, places
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.views.chat_messages import answered_at, message_parts
from turnwise.memory.stores.search.query import Query
from turnwise.memory.stores.search.words import MAX_TEXT_CHARS
from turnwise.memory.values.ranges import MAX_COUNT

SearchedRole = Literal["user", "assistant"]
"""Who said what is searched: prompts, texts of documents, and answers, but no instructions, thoughts, summaries or
results of tools."""


@dataclass(frozen=True, kw_only=True)
class MessageText:
    """The text of a message, to be found by search. `turn_index` and `number` name the message in its session."""

    turn_index: int
    number: int
    role: SearchedRole
    at: float
    """See `ChatMessage.at`."""
    spans: Spans
    """Where the message's blocks are."""
    text: str
    """Its first `MAX_TEXT_CHARS` characters, which are those of its blocks: see `text_of_blocks`."""


@dataclass(frozen=True, kw_only=True)
class TextFilter:
    """Which texts are searched: those of one user's sessions. Fields that are None match all."""

    query: Query
    user_id: str
    shared: bool = False
    """Whether sessions of others are searched too, of which the user is a member in the moment of the search."""
    agent: str | None = None
    session_id: str | None = None
    agents: bool = True
    """Whether sessions of agents are searched too: those that another session has called."""
    role: SearchedRole | None = None
    since: float | None = None
    """`at` is this time or later, in seconds since the epoch."""
    until: float | None = None
    """`at` is before this time."""
    mark: str | None = None
    """The message has a mark of this name."""


@dataclass(frozen=True, kw_only=True)
class TextHit:
    """A message that a search has found: where it is, and which session it is of."""

    session: SessionKey
    title: str | None
    agent: str | None
    turn_index: int
    number: int
    role: SearchedRole
    at: float
    spans: Spans
    cursor: str
    """Pass it to get the hits after this one."""
    is_shown: bool
    """Whether its turn is in the conversation as it is shown, and not a version that another one has replaced."""


@runtime_checkable
class Searchable(Protocol):
    """A session store that keeps `Commit.texts`, and finds them."""

    async def search_texts(self, texts: TextFilter, *, cursor: str | None = None, limit: int = 20) -> Sequence[TextHit]:
        """Return up to `limit` messages whose texts match, after the hit of the cursor.

        They are in the order in which they were stored, the newest first.

        Raises:
            InvalidInputError: `cursor` is none of a hit.
        """

    async def count_texts(self, texts: TextFilter, *, limit: int) -> int:
        """Return how many messages match; `limit`, if there are more."""


def searchable(store: object) -> Searchable:
    """Return the store if it can search.

    Raises:
        SearchUnavailableError: it cannot.
    """
    if isinstance(store, Searchable):
        return store
    raise SearchUnavailableError(str(store))


def is_searched(turn: TurnRecord) -> bool:
    """Whether search finds what a turn shows: not if it was forgotten, nor before its run has added something.

    So the usual turn adds its texts once, at its end. A run that waits for a decision has added what it asks.
    """
    return not turn.forgotten and (bool(turn.output) or turn.status not in ("queued", "running"))


def turn_texts(
    session_id: str,
    turn: TurnRecord,
    run: RunRecord | None,
    prompt: Sequence[Block],
    output: Sequence[Block],
) -> list[MessageText]:
    """Return the texts of a turn that are searched; none if it is not searched.

    Args:
        run: the turn's run.
        prompt: its blocks, as `turn.prompt` has their positions.
        output: likewise.
    """
    if not is_searched(turn):
        return []
    block_places, removed = places(join(turn.prompt, turn.output)), turn.removed_numbers
    texts: list[MessageText] = []
    start = number = 0
    for at, blocks in ((turn.created_at, prompt), (answered_at(turn, run), output)):
        for part in message_parts(blocks):
            role, stop = part[0].role, start + len(part)
            kept = [index for index in range(start, stop) if index not in removed]
            if kept and role in ("user", "assistant"):
                text = "".join(_searched(vars(part[index - start])) for index in kept)[:MAX_TEXT_CHARS]
                if text and not text.isspace():
                    spans = join(block_places[index] for index in kept)
                    texts.append(
                        MessageText(turn_index=turn.index, number=number, role=role, at=at, spans=spans, text=text)
                    )
            start, number = stop, number + 1
    return texts


def text_of_blocks(encoded: Iterable[str]) -> str:
    """Return what `turn_texts` has as the text of a message with these encoded blocks."""
    return "".join(map(_searched, map(json.loads, encoded)))[:MAX_TEXT_CHARS]


def _searched(block: Mapping[str, Any]) -> str:
    """Return what a block adds, by its fields, to the text that is searched."""
    if block["kind"] == "document":
        text = block.get("text") or "\n\n".join(block.get("chunks", ()))
        return f"\n{text}" if text else ""  # its words do not touch those before
    return str(block["text"]) if block["kind"] in ("user", "text") else ""


def parse_hit_cursor(cursor: str | None) -> int:
    """Return the number below which the numbers of the hits of a page are: those after the hit of the cursor.

    Raises:
        InvalidInputError: it is no cursor of a hit.
    """
    if cursor is None:
        return MAX_COUNT
    if not re.fullmatch("[0-9]{1,18}", cursor):
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, with the same order")
    return int(cursor)
