"""Ends the open runs of a session for its archive. The session itself is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from turnwise.errors import CorruptRecordError
from turnwise.memory.archive.block_positions import LOG, ArchivePositions, runs_of
from turnwise.memory.conversation.blocks import Text, decode, encode
from turnwise.memory.conversation.events import Event, RunInterrupted
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, join
from turnwise.memory.conversation.transcript import repair
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import last_shown_turn, read_blocks

WHY = "the session was exported while it was open"


@dataclass(slots=True)
class Ends:
    """The ended runs and turns that replace the open ones in an archive, and the blocks and events that are added."""

    session: SessionRecord
    turns: dict[int, TurnRecord] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


async def interrupt(store: SessionStore, session: SessionRecord, positions: ArchivePositions) -> Ends:
    """Return the ends of a session's open runs. All become interrupted, queued ones too; they keep their prompts.

    A run that was to say a text has said it. The output of all others is repaired, so that the conversation can go on.
    """
    ends = Ends(replace(session, log_size=positions.size))
    before: TurnRecord | None = None
    async for run in runs_of(store, session.key):
        if not run.is_open:
            continue
        turn = next(iter(await store.turns(session.key, after=run.turn_index - 1, limit=1)), None)
        if turn is None or turn.index != run.turn_index:
            raise CorruptRecordError(f"turn {session.session_id}#{run.turn_index}", "missing, but its run exists")
        moved = positions.archived_turn(turn)
        if turn.status == "queued":  # the turn that it continues has ended only now
            before = before or await _head(store, session, positions)
            parent = f"{session.session_id}#{before.index}" if before else None
            moved = replace(moved, parent=parent, input=join(before.base if before else (), moved.prompt))
        _end(ends, run, moved, await read_blocks(store, turn.output))
        before = ends.turns[turn.index]
    return ends


def _end(ends: Ends, run: RunRecord, turn: TurnRecord, texts: Sequence[str]) -> None:
    session = ends.session
    output = [decode(text) for text in texts]
    positions = [Span(LOG, index, index + 1) for span in turn.output for index in range(span.start, span.stop)]
    position_of = {id(block): position for block, position in zip(output, positions, strict=True)}
    repaired = repair(output, why=WHY, interrupted=True) if run.says is None else [Text(text=run.says)]
    first, size = session.log_size, session.log_size
    spans = []
    for block in repaired:
        if position := position_of.get(id(block)):
            spans.append(position)
            continue
        ends.blocks.append(encode(block))
        spans.append(Span(LOG, size, size + 1))
        size += 1
    ends.turns[turn.index] = replace(turn, status="interrupted", output=join(spans))
    began, code = (None, None) if run.state == "queued" else (run.started_at, run.code)
    ends.runs[run.run_id] = replace(
        run, state="interrupted", why=WHY, code=code, started_at=began, ended_at=session.updated_at
    )
    ends.session = replace(session, log_size=size, seq=session.seq + 1)
    ends.events.append(
        RunInterrupted(
            **session.key._asdict(),
            seq=session.seq + 1,
            at=session.updated_at,
            turn_index=turn.index,
            run_id=run.run_id,
            why=WHY,
            span=(first, size) if size > first else None,
        )
    )


async def _head(store: SessionStore, session: SessionRecord, positions: ArchivePositions) -> TurnRecord | None:
    head = await last_shown_turn(partial(store.turns, session.key), session.branches, session.next_index)
    return positions.archived_turn(head) if head else None
