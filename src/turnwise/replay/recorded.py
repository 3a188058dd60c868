"""`RecordedTurn`: a turn as it is stored, with the request that its model saw. Reads them from a store by pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from turnwise.actors.session.memory.memory_retrieval import FRONT, RECALLED
from turnwise.actors.session.window.leaving_out import without
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import CLEARED, AnyBlock, Recalled, Unknown
from turnwise.memory.conversation.branches import shown_among
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Spans, cut, join, overlap, size, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import read_blocks, read_runs
from turnwise.replay.records import Answer, answer_of
from turnwise.replay.selecting import Selection

TURNS_PAGE = 100
"""How many turns are read at once, with the blocks of their requests."""


_OF_USAGE = ("cost", "input_tokens", "output_tokens", "seconds")
"""What nobody knows of an imported turn."""


@dataclass(frozen=True, kw_only=True)
class RecordedTurn:
    """A stored turn. It pickles, with its blocks."""

    session: SessionRecord
    turn: Turn
    """Its record's `input` is what the model was given, without what was forgotten since."""
    run: RunRecord
    """The run that answered it. Of an imported turn, one that was never stored."""
    position: int
    """How many turns come before it among those that were read of the conversation."""
    is_selected: bool
    """Whether it is to be replayed; others are read since a later window depends on them."""
    recalled: Recalled | None = None
    """The text that memories added to its requests before the prompt."""
    front: Recalled | None = None
    """The text that memories added before the conversation."""
    inexact: tuple[str, ...] = ()
    """How its request may differ from the recorded one."""

    @property
    def before(self) -> Spans:
        """What the request had before the turn's prompt."""
        record = self.turn.record
        before, prompt = cut(record.input, size(record.input) - size(record.prompt))
        return before if prompt == join(record.prompt) else record.input

    @property
    def answer(self) -> Answer:
        """The recorded answer."""
        record, run = self.turn.record, self.run
        return answer_of(
            self.turn.output,
            status=record.status,
            why=run.why,
            code=run.code,
            stop_reason=record.stop_reason or run.stop_reason,
            model=run.model,
            params=dict(run.params),
            **({"usage": record.usage} if record.usage else {"unknown": _OF_USAGE}),
        )


async def recorded_turns(
    store: SessionStore,
    key: SessionKey,
    selection: Selection,
    indexes: frozenset[int] | None = None,
    *,
    is_whole: bool = False,
    has_memories: bool = False,
) -> AsyncIterator[list[RecordedTurn]]:
    """Yield the selected turns of a session, page by page, oldest first.

    Args:
        indexes: only these turns; None for all that match.
        is_whole: whether turns that are not selected are read too, since windows are made anew from the first on.
        has_memories: whether its runs had memories; then a turn without a kept text of theirs may be inexact.

    Raises:
        SessionNotFoundError: the session does not exist.
        StoreError: something cannot be read.
    """
    session = await store.get(key)
    first = [page async for page in _turn_pages(store, session, at_most=2)]

    def all_pages() -> AsyncIterator[Sequence[TurnRecord]]:
        return _again(first) if len(first) == 1 else _turn_pages(store, session)

    gone = [_gone(turn) async for page in all_pages() for turn in page if turn.carries_all]
    left_out, position = union(*gone), 0
    is_shown = shown_among(session.branches) if session.branches else None
    async for page in all_pages():
        runs = {run.run_id: run for run in await read_runs(partial(store.runs, key), page[0].index, page[-1].index + 1)}
        read: list[tuple[TurnRecord, RunRecord, bool, int]] = []
        for turn in page:
            if selection.versions == "shown" and is_shown and not is_shown(turn.index):
                continue
            position += 1
            run = runs.get(turn.run_id or "")
            if turn.is_open or overlap(join(turn.prompt, turn.output), left_out):
                continue  # nothing of what was removed or forgotten comes along
            is_chosen = indexes is None or turn.index in indexes
            is_selected = is_chosen and _has_request(turn, run, session.log) and selection.matches(turn, run)
            if is_selected or is_whole:
                read.append((turn, run or _run_of_import(session, turn), is_selected, position - 1))
        if read:
            cache = BlockCache()
            spans = union(*(turn.spans for turn, *_ in read), *(turn.prompt for turn, *_ in read))
            cache.add_spans(spans, await read_blocks(store, spans))
            shared = _Page(
                store=store,
                session=session,
                cache=cache,
                left_out=left_out,
                was_cleared=_was_cleared(first[0][0], session.log),
                blocks=cache.read(spans),
                has_memories=has_memories,
            )
            yield [await shared.turn(turn, run, place, is_selected=chosen) for turn, run, chosen, place in read]


async def _again(pages: Iterable[Sequence[TurnRecord]]) -> AsyncIterator[Sequence[TurnRecord]]:
    for page in pages:
        yield page


async def _turn_pages(
    store: SessionStore, session: SessionRecord, at_most: int | None = None
) -> AsyncIterator[Sequence[TurnRecord]]:
    """Yield the turns of a session by pages, at most so many, and none after the last turn that its row knows."""
    after, count = -1, 0
    while after < session.next_index - 1 and count != at_most:
        page = await store.turns(session.key, after=after, limit=TURNS_PAGE)
        if not page:
            return
        yield page
        after, count = page[-1].index, count + 1


def _gone(turn: TurnRecord) -> Spans:
    """Return the blocks that no later request may have."""
    return join(turn.removed, turn.prompt, turn.output) if turn.forgotten else turn.removed


def _has_request(turn: TurnRecord, run: RunRecord | None, log: str) -> bool:
    """Return whether a model was asked in the turn, or in the conversation that it was imported from.

    A fork begins with a copy of a turn, whose blocks are in another log: that turn is replayed where it was answered.
    """
    if not turn.prompt or (run and run.says is not None) or any(span.log != log for span in turn.prompt):
        return False
    return turn.run_id is not None or bool(turn.output)


def _run_of_import(session: SessionRecord, turn: TurnRecord) -> RunRecord:
    """Return a run for a turn that was imported, or whose run was removed: without settings of its own."""
    return RunRecord(
        run_id=turn.run_id or f"imported-{turn.index}",
        session_id=session.session_id,
        user_id=session.user_id,
        turn_index=turn.index,
        state="completed",
        first_seq=0,
        created_at=turn.created_at,
        started_at=turn.created_at,
        memory="off",
    )


@dataclass(frozen=True, kw_only=True)
class _Page:
    """What the turns of one page are made of. What most blocks are not is asked once for all of them."""

    store: SessionStore
    session: SessionRecord
    cache: BlockCache
    left_out: Spans
    """The blocks that were removed or forgotten since."""
    was_cleared: bool
    """Whether the session had turns before the first one that it has."""
    blocks: Sequence[AnyBlock]
    """Those of all its requests and answers."""
    has_memories: bool

    @cached_property
    def has_cleared(self) -> bool:
        """Whether some of its requests may have blocks that were cleared since."""
        return bool(self.left_out) or _has_cleared(self.blocks)  # a shorter request may have other blocks

    async def turn(self, turn: TurnRecord, run: RunRecord, position: int, *, is_selected: bool) -> RecordedTurn:
        """Return a turn with its request."""
        inexact: list[str] = []
        if self.left_out:
            remaining, _ = await without(turn.input, self.left_out, self._read)
            if remaining != turn.input:
                turn = replace(turn, input=remaining)
                await self._read(remaining)
                inexact.append("it lacks what was removed or forgotten since")
        if self.was_cleared or (is_selected and self.has_cleared and _has_cleared(self.cache.read(turn.input))):
            inexact.append("it may lack what it had of turns that were cleared since")
        text = turn.metadata.get(RECALLED)
        if text is None and self.has_memories and run.memory != "off":
            inexact.append("it may lack what memories recalled, which was not kept: see MemoryConfig.keep_recalled")
        return RecordedTurn(
            session=self.session,
            turn=Turn(self.session.session_id, turn, self.cache),
            run=run,
            position=position,
            is_selected=is_selected,
            recalled=Recalled(text=str(text)) if text else None,
            front=Recalled(text=str(turn.metadata[FRONT])) if FRONT in turn.metadata else None,
            inexact=tuple(inexact),
        )

    async def _read(self, spans: Spans) -> tuple[AnyBlock, ...]:
        """Return the blocks of spans, also of those that summaries stand for."""
        if missing := self.cache.missing(spans):
            self.cache.add_spans(missing, await read_blocks(self.store, missing))
        return self.cache.read(spans)


def _was_cleared(first: TurnRecord, log: str) -> bool:
    """Return whether turns may have come before the first one that is stored; a fork begins with one of another log."""
    return first.index > 0 and all(span.log == log for span in first.prompt)


def _has_cleared(blocks: Iterable[AnyBlock]) -> bool:
    return any(isinstance(block, Unknown) and block.stored_kind == CLEARED.stored_kind for block in blocks)
