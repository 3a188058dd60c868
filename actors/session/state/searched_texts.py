"""`SearchedTexts`: says which texts a commit adds to what search finds, and which it takes away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from turnwise.actors.session.state.cached_blocks import CachedBlocks
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, begins_with, join, places
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import read_runs
from turnwise.memory.stores.search.records import MessageText, Searchable, is_searched, turn_texts

REMEMBERED = 16
"""How many turns are remembered, whose texts are known to be stored."""


class SearchedTexts:
    """Compares turns that a commit stores with those that are stored, so that most commits only add texts.

    The texts of a stored turn are stored with it: those of the messages that `Session.messages` shows, none if the turn
    is not searched: see `is_searched`. A turn that is not remembered, or that has changed in another way than by
    growing, gets all its texts anew.
    """

    def __init__(self, key: SessionKey, store: SessionStore, blocks: CachedBlocks) -> None:
        self._key = key
        self._store = store
        self._blocks = blocks
        self.is_on = isinstance(store, Searchable)
        """Whether the store can search; others get no texts."""
        self._stored: dict[int, TurnRecord] = {}

    def load(self, turns: Iterable[TurnRecord]) -> None:
        """Remember the turns that an activation found, in place of all others."""
        self._stored = {turn.index: turn for turn in turns}

    def store(self, turns: Iterable[TurnRecord], dropped_turns: Iterable[int]) -> None:
        """Remember what a commit has stored."""
        for index in dropped_turns:
            self._stored.pop(index, None)
        for turn in turns:
            self._stored[turn.index] = turn
        for index in sorted(self._stored)[:-REMEMBERED]:
            del self._stored[index]

    async def changes(
        self,
        session: SessionRecord,
        blocks: Sequence[Block],
        turns: Iterable[TurnRecord],
        *,
        dropped_turns: Sequence[int],
        runs: Sequence[RunRecord],
        next_index: int,
    ) -> tuple[list[MessageText], list[int]]:
        """Return the texts that a commit adds, and the turns whose texts it deletes before: see `Commit`.

        Where the store cannot search there are none.

        Args:
            session: the row that is committed; its log ends with `blocks`.
            next_index: turns from this index on are not stored yet.
        """
        texts: list[MessageText] = []
        dropped: list[int] = []
        if not self.is_on:
            return texts, dropped
        new_span = Span(session.log, session.log_size - len(blocks), session.log_size)
        for turn in turns:
            is_new = turn.index >= next_index or turn.index in dropped_turns
            stored = None if is_new else self._stored.get(turn.index)
            if stored and _shows(stored) == _shows(turn):
                continue
            all_texts: list[MessageText] = []
            if is_searched(turn):
                prompt, output = [await self._read(part, new_span, blocks) for part in (turn.prompt, turn.output)]
                all_texts = turn_texts(self._key.session_id, turn, await self._run_of(turn, runs), prompt, output)
            additions = all_texts if is_new else _additions(stored, turn, all_texts)
            if additions is None:
                dropped.append(turn.index)
            texts += all_texts if additions is None else additions
        return texts, dropped

    async def _read(self, spans: Spans, new_span: Span, new_blocks: Sequence[Block]) -> Sequence[Block]:
        """Return blocks of which some may be those of the commit.

        Others may even come after it: of another process that owns the session now, so that this commit is refused.
        """
        if spans == (new_span,):
            return new_blocks
        if not any(span.log == new_span.log and span.stop > new_span.start for span in spans):
            return await self._blocks.read(spans)
        block_places = places(spans)
        new = {
            place: new_blocks[place.start - new_span.start]
            for place in block_places
            if place.log == new_span.log and new_span.start <= place.start < new_span.stop
        }
        if len(new) == len(block_places):
            return [*new.values()]
        earlier_places = [place for place in block_places if place not in new]
        earlier = dict(zip(earlier_places, await self._blocks.read(join(earlier_places)), strict=True))
        return [new[place] if place in new else earlier[place] for place in block_places]

    async def _run_of(self, turn: TurnRecord, runs: Sequence[RunRecord]) -> RunRecord | None:
        if turn.run_id is None or not turn.output:
            return None
        if run := next((run for run in runs if run.run_id == turn.run_id), None):
            return run
        stored = await read_runs(partial(self._store.runs, self._key), turn.index, turn.index + 1)
        return stored[0] if stored else None


def _shows(turn: TurnRecord) -> tuple[object, ...]:
    """Return what the texts of a turn depend on; nothing if it has none."""
    return (turn.prompt, turn.output, turn.removed) if is_searched(turn) else ()


def _additions(stored: TurnRecord | None, turn: TurnRecord, texts: Sequence[MessageText]) -> list[MessageText] | None:
    """Return those of a turn's texts that are not stored yet; None if a stored one has changed, or is unknown."""
    if stored is None or not is_searched(turn):
        return None
    if not is_searched(stored):
        return [*texts]
    if stored.removed != turn.removed:
        return None
    stored_spans = join(stored.prompt, stored.output)
    if not begins_with(join(turn.prompt, turn.output), stored_spans):
        return None
    stored_places = set(places(stored_spans))
    additions: list[MessageText] = []
    for text in texts:
        text_places = places(text.spans)
        stored_count = sum(place in stored_places for place in text_places)
        if stored_count == 0:
            additions.append(text)
        elif stored_count < len(text_places):
            return None
    return additions
