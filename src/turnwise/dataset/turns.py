"""Reads the turns of a session that may come along as examples.

What was forgotten, removed, cleared or deleted does not come along. A turn of which a message was removed is left out
whole, because the rest of the turn is about that message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from turnwise.dataset.selection import Selection
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.blocks import (
    CLEARED,
    AnyBlock,
    Document,
    Image,
    Summary,
    ToolUse,
    Unknown,
    User,
    decode,
)
from turnwise.memory.conversation.branches import ranges_below, shown_ranges
from turnwise.memory.conversation.runs import CUT_SHORT
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord, parent_id
from turnwise.memory.conversation.spans import Seen, Spans, join, overlap
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.records import check_session
from turnwise.memory.stores.reading import INDEX, pages, read_blocks

AT_ONCE = 50
"""How many turns are read at a time."""


@dataclass(frozen=True)
class UsableTurn:
    """A turn that may come along, with its blocks."""

    record: TurnRecord
    prompt: tuple[AnyBlock, ...]
    """The blocks of the prompt that the model saw."""
    output: tuple[AnyBlock, ...]
    replaces: bool = False
    """Whether a middleware has changed what was before the turn: `prompt` then has all of it, in its new form."""
    is_inherited: bool = False
    """Whether a fork has it of the session that it was forked from."""

    @property
    def blocks(self) -> tuple[AnyBlock, ...]:
        """The prompt, then the output."""
        return (*self.prompt, *self.output)

    @property
    def spans(self) -> Spans:
        """Where its blocks are."""
        return join(_asked(self.record), self.record.output)

    @property
    def calls_tools(self) -> bool:
        """Whether the model calls a tool."""
        return any(isinstance(block, ToolUse) for block in self.output)


class SessionTurns:
    """The usable turns of one session.

    Args:
        left_out: counts what does not come along, by reason.
    """

    def __init__(
        self, store: SessionStore, session: SessionRecord, selection: Selection, left_out: Counter[str]
    ) -> None:
        self.session = session
        self._store = store
        self._selection = selection
        self._left_out = left_out
        self._gone: Seen | None = None
        """The blocks that were removed or forgotten."""

    async def shown(self) -> AsyncIterator[UsableTurn]:
        """Yield the usable turns of the conversation as it is shown, those first that a fork has inherited.

        Ends before the first turn with words of somebody who has not consented, or with a picture or a file: what was
        answered later may repeat them.
        """
        async for turn in self._path(shown_ranges(self.session.branches)):
            if self.ends(turn):
                return
            yield turn

    async def below(self, index: int) -> list[UsableTurn] | None:
        """Return the last `max_turns` usable turns that a turn follows; None if they must not come along."""
        turns: list[UsableTurn] = []
        async for turn in self._path(ranges_below(self.session.branches, index)):
            if self.ends(turn):
                return None
            turns.append(turn)
            del turns[: -self._selection.max_turns]
        return turns

    async def are_unchanged(self, turns: Sequence[UsableTurn]) -> bool:
        """Return whether these turns may still come along, after sessions were possibly changed meanwhile."""
        try:
            session = check_session(await self._store.get(self.session.key))
        except SessionNotFoundError:
            return False
        if session.log != self.session.log or not self._selection.consents(session):
            return False
        if any(turn.is_inherited for turn in turns):
            again = SessionTurns(self._store, session, self._selection, Counter())
            inherited = {turn.spans async for turn in again._path(())}
            if any(turn.is_inherited and turn.spans not in inherited for turn in turns):
                return False
        if session.revision == self.session.revision:
            return True
        self.session, self._gone = session, None
        for turn in turns:
            if not turn.is_inherited:
                page = await self._store.turns(session.key, after=turn.record.index - 1, limit=1)
                if not page or page[0].index != turn.record.index or await self._is_gone(page[0]):
                    return False
        return True

    async def usable(self, record: TurnRecord) -> UsableTurn | None:
        """Return a turn as a usable one; None if it may not come along. See also `ends`."""
        if record.is_open:
            return None
        if record.status != "completed" or record.stop_reason in CUT_SHORT:
            self._left_out["turns without a whole answer"] += 1
            return None
        if await self._is_gone(record):
            self._left_out["turns that were forgotten, or of which a message was removed"] += 1
            return None
        asked = _asked(record)
        turn = UsableTurn(record, await self.blocks(asked), await self.blocks(record.output))
        if any(isinstance(block, Unknown) and block.stored_kind == CLEARED.stored_kind for block in turn.blocks):
            self._left_out["turns that were cleared"] += 1
            return None
        return turn

    def ends(self, turn: UsableTurn) -> bool:
        """Return whether no conversation may go on with this turn."""
        authors = {block.author for block in turn.prompt if isinstance(block, User)}
        if authors - {None, self.session.user_id, *self._selection.authors}:
            self._left_out["conversations from where others say something"] += 1
            return True
        if any(isinstance(block, Image | Document) for block in turn.blocks):
            self._left_out["conversations from where there is a picture or a file"] += 1
            return True
        return False

    async def _path(self, ranges: Sequence[range]) -> AsyncIterator[UsableTurn]:
        """Yield the usable turns with these indexes, after those that a fork has inherited."""
        before: list[Spans] = []
        for origin, index in await self._origins():
            path = (*ranges_below(origin.session.branches, index), range(index, index + 1))
            async for turn in origin._within(path):  # noqa: SLF001 - of the same class
                if not await self._is_gone(turn.record):
                    yield replace(turn, is_inherited=True)
                    before.append(turn.spans)
        async for turn in self._within(ranges):
            if not continues(turn, before):
                before.clear()
                yield replace(turn, prompt=await self._replaced_input(turn.record), replaces=True)
            else:
                yield turn
            before.append(turn.spans)

    async def _origins(self) -> list[tuple[SessionTurns, int]]:
        """Return the sessions that this one was forked from, the oldest first, each with the index of the turn.

        Only as far as they are still there, were not cleared, and consent.
        """
        origins: list[tuple[SessionTurns, int]] = []
        fork = self
        while fork.session.parent is not None and len(origins) < MAX_ORIGINS:
            key, index = SessionKey(parent_id(fork.session.parent), fork.session.user_id), fork._copied
            copies = await self._store.turns(fork.session.key, after=index - 1, limit=1)
            if not copies or copies[0].index != index:
                break  # the fork was cleared, and so was what it has of the other session
            try:
                origin = check_session(await self._store.get(key))
            except SessionNotFoundError:
                break
            if origin.created_at > fork.session.created_at or not self._selection.consents(origin):
                break  # a later session with the same id, or one that does not consent
            fork = SessionTurns(self._store, origin, self._selection, self._left_out)
            origins.insert(0, (fork, index))
        return origins

    @property
    def _copied(self) -> int:
        """The index of the turn that a fork begins with, a copy of one of the other session's; -1 if it is no fork."""
        return -1 if self.session.parent is None else int(self.session.parent.rpartition("#")[2])

    async def _within(self, ranges: Iterable[range]) -> AsyncIterator[UsableTurn]:
        for part in ranges:
            start = max(part.start, self._copied + 1)
            while start < part.stop:
                page = await self._store.turns(self.session.key, after=start - 1, limit=AT_ONCE)
                for record in page:
                    if record.index < part.stop and (turn := await self.usable(record)):
                        yield turn
                start = page[-1].index + 1 if page else part.stop

    async def _is_gone(self, record: TurnRecord) -> bool:
        gone = await self._find_gone()
        return record.forgotten or any(gone.common(span) for span in join(_asked(record), record.output))

    async def _find_gone(self) -> Seen:
        if self._gone is None:
            gone = Seen()
            async for page in pages(partial(self._store.turns, self.session.key), -1, INDEX):
                for turn in page:
                    for span in (*turn.removed, *((*turn.prompt, *turn.output) if turn.forgotten else ())):
                        gone.add(span)
            self._gone = gone
        return self._gone

    async def _replaced_input(self, record: TurnRecord) -> tuple[AnyBlock, ...]:
        """Return what the model saw of the session's own blocks, without what is gone, and without summaries of it."""
        gone = await self._find_gone()
        spans = join(*(gone.new(span) for span in record.input if span.log == self.session.log))
        return tuple(block for block in await self.blocks(spans) if not isinstance(block, Summary))

    async def blocks(self, spans: Spans) -> tuple[AnyBlock, ...]:
        """Return blocks, in order."""
        return tuple(decode(text) for text in await read_blocks(self._store, spans)) if spans else ()


MAX_ORIGINS = 100
"""How many sessions are read, of which each was forked from the one before."""


def _asked(record: TurnRecord) -> Spans:
    """Return the spans of the prompt that the model saw: a middleware may have put others in their place."""
    return overlap(record.input, record.prompt) if record.input else join(record.prompt)


def continues(turn: UsableTurn, before: Iterable[Spans]) -> bool:
    """Return whether a turn has the blocks before it unchanged, as all turns have that no middleware has stored anew.

    Args:
        before: the blocks of the turns before it.
    """
    record = turn.record
    if not record.input or _asked(record) == join(record.prompt):
        return True
    held = Seen()
    for span in record.input:
        held.add(span)
    return not any(held.new(span) for spans in before for span in spans)
