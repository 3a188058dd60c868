"""Where the blocks of a session stand in its archive: in one log, those of other logs behind its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from turnwise.errors import CorruptRecordError
from turnwise.memory.conversation.blocks import Summary, decode, encode
from turnwise.memory.conversation.corrupt_records import why_unreadable
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, subtract, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore

PAGE = 256
"""How many records of a kind are held at a time."""

LOG = ""
"""The name of an archive's one log. Each store gives it another."""

Move = Callable[[Span], Span]
"""Returns where the blocks of a span stand elsewhere."""


class Places:
    """Where blocks stand in the archive: those of the session's own log as they do there, then what it spans of others.

    Args:
        others: what the session spans of other logs.
    """

    def __init__(self, session: SessionRecord, others: Iterable[Span]) -> None:
        own = Span(session.log, 0, session.log_size)
        self.order: Spans = (own, *union(others))
        """The spans whose blocks the archive has, in its order."""
        self._starts: list[int] = []
        self.size = 0
        for span in self.order:
            self._starts.append(self.size)
            self.size += span.stop - span.start

    def of(self, span: Span) -> Span:
        """Return where a span stands.

        Raises:
            CorruptRecordError: it has blocks that the session does not span.
        """
        for held, start in zip(self.order, self._starts, strict=True):
            if held.log == span.log and held.start <= span.start and span.stop <= held.stop:
                return Span(LOG, start + span.start - held.start, start + span.stop - held.start)
        raise CorruptRecordError(f"block {span.log}:{span.start}", f"not among what {self.order[0]} and its turns span")


async def find_places(store: SessionStore, session: SessionRecord) -> Places:
    """Return where the session's blocks go: two more reads of a fork, which alone spans other logs."""
    if session.parent is None:
        return Places(session, ())
    own = Span(session.log, 0, session.log_size)
    others: Spans = ()
    async for turn in turns_of(store, session.session_id):
        others = union(others, subtract(_spans_of(turn), (own,)))
    new: Spans = (own, *others)
    while new:
        found: list[Span] = []
        async for text in blocks_of(store, new):
            if summary := _summary(text):
                found += _stands_for(summary)
        new = subtract(found, (own, *others))
        others = union(others, new)
    return Places(session, others)


async def turns_of(store: SessionStore, session_id: str) -> AsyncIterator[TurnRecord]:
    """Yield a session's turns, by index."""
    after = -1
    while page := await store.turns(session_id, after=after, limit=PAGE):
        for turn in page:
            yield turn
        after = page[-1].index


async def blocks_of(store: SessionStore, spans: Iterable[Span]) -> AsyncIterator[str]:
    """Yield the encoded blocks of spans, in order."""
    for log, start, stop in spans:
        for at in range(start, stop, PAGE):
            await asyncio.sleep(0)
            for text in await store.blocks([Span(log, at, min(at + PAGE, stop))]):
                yield text


def move_turn(turn: TurnRecord, move: Move) -> TurnRecord:
    """Return the turn with each of its spans elsewhere."""

    def moved(spans: Spans) -> Spans:
        return tuple(map(move, spans))

    return replace(
        turn,
        prompt=moved(turn.prompt),
        appended=moved(turn.appended),
        input=moved(turn.input),
        output=moved(turn.output),
        carried=moved(turn.carried),
    )


def move_block(text: str, move: Move) -> str:
    """Return an encoded block; if it is a summary, with where that stands what it stands for."""
    summary = _summary(text)
    return encode(move_summary(summary, move)) if summary else text


def move_summary(summary: Summary, move: Move) -> Summary:
    """Return a summary with where that stands what it stands for."""
    of = tuple(tuple(move(Span(*place))) for place in summary.of)
    folded = tuple(tuple(move(Span(log, at, at + 1)))[:2] for log, at in summary.folded)
    return summary.model_copy(update={"of": of, "folded": folded})


def _summary(text: str) -> Summary | None:
    try:
        block = decode(text) if "summary" in text else None
    except ValueError as error:
        raise CorruptRecordError("block", why_unreadable(error)) from None
    return block if isinstance(block, Summary) else None


def _stands_for(summary: Summary) -> Spans:
    return union((Span(*place) for place in summary.of), (Span(log, at, at + 1) for log, at in summary.folded))


def _spans_of(turn: TurnRecord) -> Spans:
    return union(turn.prompt, turn.appended, turn.input, turn.output, turn.carried)
