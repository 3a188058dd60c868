"""`ChatMessage`: the conversation as a flat list, as chat interfaces show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, Role, System, Text, ToolResult, User
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.turns import TurnRecord, TurnStatus


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def id(self) -> str:
        """Names the message among all sessions: `session_id#turn_index:number`."""
        return f"{self.session_id}#{self.cursor}"

    @property
    def cursor(self) -> str:
        """Names the message within its session; `Session.messages(before=...)` takes it."""
        return f"{self.turn_index}:{self.number}"


def chat_messages_of(
    session_id: str, turn: TurnRecord, run: RunRecord | None, prompt: Sequence[AnyBlock], output: Sequence[AnyBlock]
) -> list[ChatMessage]:
    """Return the messages that a turn added: consecutive blocks of one role, with one prompt or one tool result."""
    answered_at = turn.created_at if run is None else run.ended_at or run.started_at or run.created_at
    parts = [*((turn.created_at, part) for part in _parts(prompt)), *((answered_at, part) for part in _parts(output))]
    return [
        ChatMessage(
            session_id=session_id,
            turn_index=turn.index,
            number=number,
            role=part[0].role,
            text="".join(map(_text, part)),
            at=at,
            turn_status=turn.status,
            run_id=turn.run_id,
            blocks=tuple(part),
        )
        for number, (at, part) in enumerate(parts)
    ]


def _text(block: AnyBlock) -> str:
    if isinstance(block, ToolResult):
        return block.plain
    return block.text if isinstance(block, System | User | Text) else ""


def _parts(blocks: Iterable[AnyBlock]) -> list[list[AnyBlock]]:
    parts: list[list[AnyBlock]] = []
    for block in blocks:
        is_single = isinstance(block, System | User | ToolResult)
        last = parts[-1] if parts else []
        if not last or last[0].role != block.role or (is_single and any(type(block) is type(each) for each in last)):
            parts.append([block])
        else:
            last.append(block)
    return parts


def parse_message_cursor(cursor: str) -> tuple[int, int]:
    """Return the turn's index and the number of a message from its `cursor`.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", cursor)
    if found is None:
        raise InvalidInputError("before", shown(cursor), "pass the cursor of the page before, unchanged")
    return int(found[1]), int(found[2])
