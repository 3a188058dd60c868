"""Positions of a session's blocks in its archive.

A session may use blocks of several logs: its own, and those of sessions that it was forked from. An archive has a
single log: the blocks of the session's own log, then those that it uses of others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.blocks import Summary, decode, encode
from turnwise.memory.conversation.codec import decoded
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, overlap, subtract, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import INDEX, TURN_INDEX, pages, steps_of_blocks

PAGE = 256
"""How many records of a kind are in memory at a time."""

LOG = ""
"""The name of an archive's log. A store gives the log another name at the import."""

Move = Callable[[Span], Span]
"""Returns the position of a span's blocks after an export or an import."""


class ArchivePositions:
    """The positions of blocks in the archive. Blocks of the session's own log keep theirs; others follow them.

    Args:
        foreign: the spans of other logs that the session uses.
    """

    def __init__(self, session: SessionRecord, foreign: Iterable[Span]) -> None:
        own_span = Span(session.log, 0, session.log_size)
        self.order: Spans = (own_span, *union(foreign))
        """The spans of the archive's blocks, in the archive's order."""
        self._starts: list[int] = []
        self.size = 0
        for span in self.order:
            self._starts.append(self.size)
            self.size += span.stop - span.start

    def archived(self, span: Span) -> Span:
        """Return the position of a span in the archive.

        Raises:
            CorruptRecordError: the span has blocks that the session does not use.
        """
        for held, start in zip(self.order, self._starts, strict=True):
            if held.log == span.log and held.start <= span.start and span.stop <= held.stop:
                return Span(LOG, start + span.start - held.start, start + span.stop - held.start)
        raise CorruptRecordError(f"block {span.log}:{span.start}", "neither the session's log nor its turns have it")

    def archived_turn(self, turn: TurnRecord) -> TurnRecord:
        """Return a turn of the session with its positions in the archive."""
        # After a clear, a turn may list removed blocks of another log that no turn uses. The archive lacks them.
        return move_turn(replace(turn, removed=overlap(turn.removed, self.order)), self.archived)


async def find_positions(store: SessionStore, session: SessionRecord) -> ArchivePositions:
    """Return the positions of the session's blocks. Reads the blocks of a fork, since only forks use other logs."""
    if session.parent is None:
        return ArchivePositions(session, ())
    own_span = Span(session.log, 0, session.log_size)
    foreign: Spans = ()
    async for turn in turns_of(store, session.key):
        foreign = union(foreign, subtract(_used_by(turn), (own_span,)))
    new: Spans = (own_span, *foreign)
    while new:  # what a summary replaces may be summaries, which replace other blocks
        replaced: list[Span] = []
        async for text in blocks_of(store, new):
            if summary := _summary(text):
                replaced += _replaced_by(summary)
        new = subtract(replaced, (own_span, *foreign))
        foreign = union(foreign, new)
    return ArchivePositions(session, foreign)


async def turns_of(store: SessionStore, key: SessionKey) -> AsyncIterator[TurnRecord]:
    """Yield a session's turns, by index."""
    async for page in pages(partial(store.turns, key, limit=PAGE), -1, INDEX):
        for turn in page:
            yield turn


async def runs_of(store: SessionStore, key: SessionKey) -> AsyncIterator[RunRecord]:
    """Yield a session's runs, by the index of their turns."""
    async for page in pages(partial(store.runs, key, limit=PAGE), -1, TURN_INDEX):
        for run in page:
            yield run


async def blocks_of(store: SessionStore, spans: Iterable[Span]) -> AsyncIterator[str]:
    """Yield the encoded blocks of spans, in order."""
    async for _, texts in steps_of_blocks(store, tuple(spans)):
        for text in texts:
            yield text


def move_turn(turn: TurnRecord, move: Move) -> TurnRecord:
    """Return the turn with all its spans moved."""

    def moved(spans: Spans) -> Spans:
        return tuple(map(move, spans))

    return replace(
        turn,
        prompt=moved(turn.prompt),
        appended=moved(turn.appended),
        input=moved(turn.input),
        output=moved(turn.output),
        carried=moved(turn.carried),
        removed=moved(turn.removed),
    )


def move_block(text: str, move: Move) -> str:
    """Return an encoded block; if it is a summary, with the spans that it replaces moved."""
    summary = _summary(text)
    return encode(move_summary(summary, move)) if summary else text


def move_summary(summary: Summary, move: Move) -> Summary:
    """Return the summary with the spans that it replaces moved."""
    spans = tuple(tuple(move(Span(*place))) for place in summary.of)
    moved = [move(_span_of(log, position)) for log, position in summary.folded]
    return summary.model_copy(update={"of": spans, "folded": tuple((span.log, span.start) for span in moved)})


def _summary(text: str) -> Summary | None:
    # The text is searched first: decoding each block takes much longer.
    block = decoded("block", lambda: decode(text)) if "summary" in text else None
    return block if isinstance(block, Summary) else None


def _replaced_by(summary: Summary) -> Spans:
    return union((Span(*place) for place in summary.of), (_span_of(log, position) for log, position in summary.folded))


def _span_of(log: str, position: int) -> Span:
    return Span(log, position, position + 1)


def _used_by(turn: TurnRecord) -> Spans:
    return union(turn.prompt, turn.appended, turn.input, turn.output, turn.carried)
