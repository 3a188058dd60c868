"""`StoredRecords`: finds the turns and runs of a session in its store."""

from __future__ import annotations

from functools import partial

from turnwise.errors import RunNotFoundError, TurnNotFoundError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, join, overlap, subtract, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.longterm.turn_items import TurnBlocks
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.reading import last_shown_turn, read_runs


class StoredRecords:
    """Reads the stored turns and runs of one session. Nothing is cached."""

    def __init__(self, key: SessionKey, store: SessionStore) -> None:
        self._key = key
        self._store = store

    async def find_turn(self, index: int) -> TurnRecord:
        """Return a turn's record.

        Raises:
            TurnNotFoundError: no turn has this index.
        """
        turns = await self._store.turns(self._key, after=index - 1, limit=1) if index >= 0 else []
        if not turns or turns[0].index != index:
            raise TurnNotFoundError(self._key.session_id, index)
        return turns[0]

    async def last_shown_turn(self, session: SessionRecord) -> TurnRecord | None:
        """Return the last shown turn that has ended, by the branches of this row; None if there is none."""
        return await last_shown_turn(partial(self._store.turns, self._key), session.branches, session.next_index)

    async def find_run(self, run_id: str) -> RunRecord:
        """Return a run of this session.

        Raises:
            RunNotFoundError: the session has no run with this id.
        """
        try:
            run = await self._store.run(run_id, self._key.user_id)
        except RunNotFoundError:
            run = None
        if run is None or run.session_key != self._key:
            raise RunNotFoundError(run_id, f"session {self._key.session_id!r}")
        return run

    async def find_turn_of(self, run: RunRecord) -> TurnRecord | None:
        """Return the turn of a run that has ended; None if the turn was dropped."""
        turns = await self._store.turns(self._key, after=run.turn_index - 1, limit=1)
        return next((turn for turn in turns if turn.run_id == run.run_id), None)

    async def find_turns_of_blocks(self, session: SessionRecord, spans: Spans) -> list[TurnBlocks]:
        """Return the turns that added some of these blocks to the session's log, each with all blocks that it added.

        Reads these turns and their runs, and about ten other turns to find the first one.

        Args:
            session: the session's row, which names its log.
        """
        remaining = union(span for span in spans if span.log == session.log)
        first = await self._index_before(remaining[0], session.next_index) if remaining else -1
        turns, remaining = await self._turns_from(first, remaining)
        if remaining and first >= 0:  # the first one has no prompt by which it could be found
            earlier, _ = await self._turns_from(-1, remaining)
            turns = sorted([*earlier, *turns], key=lambda turn: turn.index)
        return turns

    async def _turns_from(self, after: int, remaining: Spans) -> tuple[list[TurnBlocks], Spans]:
        """Return the turns above an index that added some of these blocks, and the blocks that none of them added."""
        turns: list[TurnBlocks] = []
        while remaining and (page := await self._store.turns(self._key, after=after)):
            runs = await read_runs(partial(self._store.runs, self._key), after + 1, page[-1].index + 1)
            private = {run.run_id for run in runs if run.memory != "on"}
            for turn in page:
                added = join(turn.prompt, turn.output)
                if overlap(remaining, added):
                    is_private = turn.forgotten or turn.run_id in private
                    turns.append(TurnBlocks(turn.index, added, turn.created_at, is_private))
                    remaining = subtract(remaining, added)
            after = page[-1].index
        return turns, remaining

    async def _index_before(self, place: Span, next_index: int) -> int:
        """Return an index below that of the turn whose prompt is at this place, by bisection: prompts are in order.

        Turns without prompts say nothing about the place; the bisection goes on before them.
        """
        low, high = 0, next_index
        while low < high:
            middle = (low + high) // 2
            page = await self._store.turns(self._key, after=middle - 1, limit=1)
            starts = [span.start for turn in page for span in turn.prompt if span.log == place.log]
            if starts and min(starts) <= place.start:
                low = page[0].index + 1
            else:
                high = middle
        return low - 2
