"""`ChatMessage`: the conversation as a flat list, as chat interfaces show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TypeVar

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Block, Role, System, Text, ToolResult, Unknown, User
from turnwise.memory.conversation.branches import Branches, versions_of
from turnwise.memory.conversation.marks import Mark, marks_of
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Span, Spans, join, places
from turnwise.memory.conversation.turns import TurnRecord, TurnStatus

Item = TypeVar("Item", bound=Block)


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """A prompt with what is attached to it, a piece of an answer with its tool calls, or results of tools."""

    session_id: str
    turn_index: int
    number: int
    """Its place among the messages of its turn, from 0."""
    role: Role
    text: str
    """The text of its blocks, joined: of a prompt, an answer, instructions or tool results; without thoughts."""
    at: float
    """Seconds since the epoch: when the prompt was given, or when the run ended that answered; its start before."""
    turn_status: TurnStatus
    run_id: str | None
    """None while no run has the prompt."""
    blocks: tuple[AnyBlock, ...]
    places: Spans = ()
    """Where its blocks are, for `Session.remove`."""
    marks: Mapping[str, Mark] = field(default_factory=dict, hash=False)
    """Its marks, by name; see `Session.mark`."""
    is_partial: bool = False
    """Whether it is still being answered: it will be longer, or not be there at all if the run is interrupted."""
    author: str | None = None
    """Who has said a prompt of a shared session; None for the session's user, and for answers."""
    versions: tuple[int, ...] = ()
    """The indexes of the versions of its turn, by age, its own included: see `Turn.versions`."""

    @property
    def id(self) -> str:
        """Names the message among all messages of the user: `session_id#turn_index:number`."""
        return f"{self.session_id}#{self.cursor}"

    @property
    def place(self) -> str:
        """Names its blocks over HTTP. Unlike `number`, it stays when another prompt that waits is removed."""
        return f"{self.turn_index}~{'~'.join(f'{log}.{start}-{stop}' for log, start, stop in self.places)}"

    @property
    def cursor(self) -> str:
        """Names the message within its session; `Session.messages(before=...)` takes it."""
        return f"{self.turn_index}:{self.number}"


def chat_messages_of(
    session_id: str,
    turn: TurnRecord,
    run: RunRecord | None,
    prompt: Sequence[AnyBlock],
    output: Sequence[AnyBlock],
    *,
    streamed: Sequence[AnyBlock] = (),
    branches: Branches = (),
) -> list[ChatMessage]:
    """Return the messages that a turn added: consecutive blocks of one role, with one prompt or one tool result.

    Args:
        streamed: the blocks that follow `output` and are not stored yet.
        branches: the session's.

    Removed blocks are left out, and so are messages without remaining blocks, or with blocks of unknown kinds only, in
    which adapters store data of their own. The other messages keep their numbers.
    """
    versions = tuple(version.turn_index for version in versions_of(branches, turn.index))
    stored_places = places(join(turn.prompt, turn.output))
    numbered_places, removed = enumerate(chain(stored_places, repeat(None))), turn.removed_numbers
    parts = [
        (
            time,
            [
                (place, block)
                for block, (number, place) in zip(part, numbered_places, strict=False)
                if number not in removed
            ],
        )
        for time, blocks in ((turn.created_at, prompt), (answered_at(turn, run), [*output, *streamed]))
        for part in message_parts(blocks)
    ]
    return [
        ChatMessage(
            session_id=session_id,
            turn_index=turn.index,
            number=number,
            role=part[0][1].role,
            text="".join(message_text(block) for _, block in part),
            at=time,
            turn_status=turn.status,
            run_id=turn.run_id,
            blocks=tuple(block for _, block in part),
            places=join(place for place, _ in part if place is not None),
            marks=marks_of(turn, number) if turn.marks else {},
            is_partial=any(place is None for place, _ in part),
            author=next((block.author for _, block in part if isinstance(block, User)), None),
            versions=versions,
        )
        for number, (time, part) in enumerate(parts)
        if not all(isinstance(block, Unknown) for _, block in part)
    ]


def answered_at(turn: TurnRecord, run: RunRecord | None) -> float:
    """Return the time of an answer, as its messages have it."""
    return turn.created_at if run is None else run.ended_at or run.started_at or run.created_at


def message_text(block: Block) -> str:
    """Return what a block adds to the text of its message."""
    if isinstance(block, ToolResult):
        return block.plain
    return block.text if isinstance(block, System | User | Text) else ""


def message_parts(blocks: Iterable[Item]) -> list[list[Item]]:
    """Return blocks as messages have them: one prompt or one tool result, or the consecutive others of a role."""
    parts: list[list[Item]] = []
    for block in blocks:
        is_single = isinstance(block, System | User | ToolResult)
        last = parts[-1] if parts else []
        if not last or last[0].role != block.role or (is_single and any(type(block) is type(item) for item in last)):
            parts.append([block])
        else:
            last.append(block)
    return parts


def parse_place(place: str) -> tuple[int, Spans]:
    """Return the turn's index and the positions of the blocks that `ChatMessage.place` names.

    Raises:
        InvalidInputError: it is no place.
    """
    index, *parts = place.split("~")
    matches = [re.fullmatch(r"(.+)\.([0-9]{1,18})-([0-9]{1,18})", part) for part in parts]
    if not (matches and all(matches) and re.fullmatch("[0-9]{1,18}", index)):
        raise InvalidInputError("place", shown(place), "pass the place of a message, unchanged")
    return int(index), tuple(Span(match[1], int(match[2]), int(match[3])) for match in matches if match)


def parse_message_cursor(cursor: str) -> tuple[int, int]:
    """Return the turn's index and the number of a message from its `cursor`.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    match = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", cursor)
    if match is None:
        raise InvalidInputError("before", shown(cursor), "pass the cursor of the page before, unchanged")
    return int(match[1]), int(match[2])
