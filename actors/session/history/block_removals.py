"""`Removals`: takes single blocks out of what a session's next request continues."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.leaving_out import without
from turnwise.errors import InvalidInputError, SessionInUseError, TurnNotFoundError, shown
from turnwise.memory.conversation.calls.call_pairs import pairs_of
from turnwise.memory.conversation.events import BlocksRemoved
from turnwise.memory.conversation.spans import (
    Spans,
    join,
    overlap,
    places,
    size,
    subtract,
    subtract_in_order,
    to_places,
    union,
)
from turnwise.memory.conversation.turns import TurnRecord


class Removals:
    """Removes blocks of turns from later requests, in one commit that adds no block.

    The turn keeps its blocks, and lists these as `removed`; the newest turn then carries all blocks that the next turn
    continues. Prompts that wait for a run are taken out of their turn; the turn is dropped if it has no other prompts.

    While a removal awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, to read blocks | reads; a compaction | nothing of this removal |
    | the commit | reads; a compaction, which is dropped if it summarised the blocks | all of it or nothing |
    """

    def __init__(self, state: SessionState, transactor: Transactor) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor

    async def remove(self, index: int, spans: Spans, key: str) -> int:
        """Remove blocks that a turn added, and the results of those that are calls; return how many.

        Blocks that were removed before do not count. Blocks that cannot be sent without the removed ones are not sent
        either, but are not removed: see `remainder`. Durable on return.

        Args:
            spans: the blocks' positions.
            key: identifies this call; repeating the key removes nothing and returns the same number.

        Raises:
            SessionInUseError: a run is active, and its requests may contain the blocks.
            TurnNotFoundError: no such turn exists, or nothing of it waits any more.
            InvalidInputError: the turn has not added these blocks.
        """
        return await self._transactor.run(partial(self._change, index, spans, key))

    async def _change(self, index: int, spans: Spans, key: str) -> int:
        try:
            removed = await self._remove(index, spans, key)
        except (SessionInUseError, TurnNotFoundError, InvalidInputError):
            # Before refusing, look in the store: this may be the second delivery of a removal.
            if done := await self._count_removed(key):
                return done
            raise
        return removed or await self._count_removed(key)

    async def _count_removed(self, key: str) -> int:
        """Return how many blocks the earlier delivery of this call removed; 0 if there was none."""
        event = await self._journal.store.event_of_key(self._state.key, key)
        return sum(stop - start for _, start, stop in event.removed) if isinstance(event, BlocksRemoved) else 0

    async def _remove(self, index: int, spans: Spans, key: str) -> int:
        if busy := self._state.busy:
            raise SessionInUseError(self._state.session_id, busy.run_id)
        pending = self._state.run_queue.pending
        is_waiting = pending is not None and pending.index == index
        turn = pending if pending and is_waiting else await self._journal.records.find_turn(index)
        new = subtract(await self._with_results(turn, spans), turn.removed)
        if not new:
            return 0
        head = self._state.head
        turns: list[TurnRecord] = []
        dropped: list[int] = []
        if is_waiting:
            prompt = subtract_in_order(turn.prompt, new)
            remaining = replace(turn, prompt=prompt, appended=subtract_in_order(turn.appended, new))
            turns, dropped = ([remaining], []) if remaining.prompt else ([], [index])
        else:
            turn = replace(turn, removed=union(turn.removed, new))
            turns, head = await self._continued_without(turn, new)
        session = self._journal.session
        values = {"turn_index": index, "key": key, "removed": to_places(new, session.log)}
        await self._transactor.commit(session, [(BlocksRemoved, values)], turns=turns, dropped_turns=dropped)
        if dropped:
            self._state.run_queue.clear_pending()
        self._state.run_queue.apply(turns)
        self._state.continue_from(head)
        self._state.update_ended(turns)
        return size(new)

    async def _with_results(self, turn: TurnRecord, spans: Spans) -> Spans:
        """Return the spans, and the results of the calls among them.

        Raises:
            InvalidInputError: the turn has not added these blocks.
        """
        turn_spans = join(turn.prompt, turn.output)
        if subtract(spans, turn_spans):
            reason = f"turn {turn.index} of session {self._state.session_id!r} has not added all of them: read it again"
            raise InvalidInputError("blocks", shown([tuple(span) for span in spans]), reason)
        block_places, blocks = places(turn_spans), await self._journal.blocks.read(turn_spans)
        results = [block_places[result] for use, result in pairs_of(blocks) if overlap([block_places[use]], spans)]
        return union(spans, results)

    async def _continued_without(self, turn: TurnRecord, removed: Spans) -> tuple[list[TurnRecord], TurnRecord | None]:
        """Return the changed turns, and the newest turn, after which the next one continues no block of `removed`."""
        head = self._state.head
        if head is None:
            return [turn], None
        remaining, _ = await without(head.base, removed, self._journal.blocks.read)
        await self._journal.blocks.load(remaining)
        if head.index == turn.index:
            head = replace(turn, carried=remaining)
            return [head], head
        if remaining == head.base:
            return [turn], head
        head = replace(head, carried=remaining, removed=union(head.removed, removed))
        return [turn, head], head
