"""`Versions`: replaces a turn by a new version of it, and shows an earlier version again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.leaving_out import opened, without
from turnwise.errors import (
    InvalidInputError,
    SessionInUseError,
    TooManyVersionsError,
    TurnNotFoundError,
    TurnReplacedError,
)
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.branches import Branches, first_change, is_shown, replacing, showing, shown_among
from turnwise.memory.conversation.events import TurnReplaced
from turnwise.memory.conversation.spans import Spans, join, overlap, subtract_in_order, to_places, union
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores.reading import INDEX, FindsRemovals, last_shown_turn, pages
from turnwise.memory.values.limits import MAX_BRANCHES
from turnwise.memory.values.records import replace

TURNS_PAGE = 1000
"""How many turns are read at once."""


@dataclass(frozen=True)
class Replacement:
    """What a run stores that answers a new version of a turn, besides what each run stores."""

    branches: Branches
    """The session's branches with the new version."""
    event: NewEvent
    head: TurnRecord | None
    """The turn that the new version continues; None if there is none, or if it is of another session."""
    turns: Sequence[TurnRecord]
    """Earlier turns that change: `head`, if blocks that it continues were removed since it was the newest."""
    prompt: tuple[AnyBlock, ...]
    """The prompt of the replaced turn, without removed blocks."""
    parent: str | None
    """The turn of another session that the new version continues, if the replaced turn is the first one of a fork."""
    inherited: Spans
    """What it continues of that session."""

    def continued(self, turn: TurnRecord) -> TurnRecord:
        """Return the turn of the new version, which continues `head`, or what the fork began with."""
        if self.parent is None:
            return turn
        return replace(turn, parent=self.parent, input=join(self.inherited, turn.prompt))


class Versions:
    """Decides what a new version of a turn continues, and which version of each turn is shown.

    No turn is changed or dropped: `SessionRecord.branches` says which ones are shown. So a version that is not shown
    stays as it is, with all that was answered after it.

    While `choose` awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the store, to read turns and blocks | reads; a compaction | what was shown before |
    | the commit | reads; a compaction, which is dropped if the new head does not continue its window | all or nothing |
    """

    def __init__(self, state: SessionState, transactor: Transactor) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor

    async def replacement(self, at: int | None) -> Replacement:
        """Return what a new version of turn `at`, by default the last one that ended, stores. Call it within a change.

        Reads the records of turns before it of which blocks were removed; of all, if the store cannot find these.

        Raises:
            TurnNotFoundError: there is no such turn.
            TurnReplacedError: another version of it, or of a turn before it, is shown.
            SessionInUseError: a run is active or queued.
            InvalidInputError: prompts wait for a run.
            TooManyVersionsError: the session can have no more versions.
        """
        session, head = self._journal.session, self._state.head
        if at is None:
            self._check_free()  # the last turn that has ended may not be the one that the caller saw
        turn = head if at is None else await self._journal.records.find_turn(at)
        if turn is None:
            raise TurnNotFoundError(session.session_id, 0)
        self._check_shown(turn.index)
        self._check_free()
        branches = _checked(session.session_id, replacing(session.branches, turn.index, session.next_index))
        before, removed = await self._turns_below(turn.index, session.branches)
        continued = await self._continuing(before, removed) if before else None
        parent, inherited = None, Spans()
        if before is None and turn.parent is not None:  # it is the copy of another session's turn
            own = join(turn.prompt, turn.output)
            parent = turn.parent
            inherited = subtract_in_order((await opened(turn.base, own, self._journal.blocks.read))[0], own)
        prompt = () if turn.forgotten else subtract_in_order(turn.prompt, turn.removed)
        new, values = session.next_index, {"replaced": turn.index}
        return Replacement(
            branches=branches,
            event=(TurnReplaced, {"turn_index": new, **values}),
            head=continued,
            turns=[continued] if continued and continued is not before else [],
            prompt=await self._journal.blocks.read(prompt),
            parent=parent,
            inherited=inherited,
        )

    async def choose(self, index: int, key: str) -> bool:
        """Show the version of the conversation that has turn `index`; return whether another one was shown before.

        What was answered after it is shown too; if it was continued more than once, the newest continuation.

        Args:
            key: identifies this call; repeating the key changes nothing and returns the same.

        Raises:
            TurnNotFoundError: no such turn exists; nothing was changed.
            SessionInUseError: a run is active or queued; nothing was changed.
            InvalidInputError: prompts wait for a run, and would have to leave it; nothing was changed.
            TooManyVersionsError: the session can have no more versions; nothing was changed.
        """
        return await self._transactor.run(partial(self._choose, index, key))

    async def _choose(self, index: int, key: str) -> bool:
        if await self._journal.store.event_of_key(self._state.key, key):
            return True
        session = self._journal.session
        await self._journal.records.find_turn(index)
        if is_shown(session.branches, index):
            return False
        self._check_free()
        branches = _checked(session.session_id, showing(session.branches, index, session.next_index))
        chosen = replace(session, branches=branches)
        newest = await self._journal.records.last_shown_turn(chosen)
        if newest is None:
            raise TurnNotFoundError(session.session_id, index)
        _, removed = await self._turns_below(newest.index + 1, branches)
        head = await self._continuing(newest, removed)
        old, new = first_change(session.branches, branches)
        values: dict[str, Any] = {"turn_index": new, "replaced": old, "key": key}
        values["input"] = to_places(head.base, session.log)
        turns = [head] if head is not newest else []
        await self._transactor.commit(chosen, [(TurnReplaced, values)], turns=turns)
        self._state.continue_from(head)
        self._state.update_ended(turns)
        return True

    def _check_shown(self, index: int) -> None:
        session = self._journal.session
        if not is_shown(session.branches, index):
            with_turn = showing(session.branches, index, session.next_index)
            _, shown_index = first_change(with_turn, session.branches)
            raise TurnReplacedError(session.session_id, index, shown_index)

    def _check_free(self) -> None:
        """Raise unless the session is free, and no prompt waits, which would have to follow another turn."""
        state = self._state
        if run := state.busy:
            raise SessionInUseError(state.session_id, run.run_id)
        if state.run_queue.pending:
            reason = f"prompts of session {state.session_id!r} wait for a run: start it, or remove them"
            raise InvalidInputError("at", state.run_queue.pending.index, reason)

    async def _turns_below(self, index: int, branches: Branches) -> tuple[TurnRecord | None, Spans]:
        """Return the last turn below an index that these branches show, and all blocks that were removed up to it."""
        store, key = self._journal.store, self._state.key
        read = store.turns_with_removals if isinstance(store, FindsRemovals) else store.turns
        removed, is_among = list(Spans()), shown_among(branches)
        async for page in pages(partial(read, key, limit=TURNS_PAGE), -1, INDEX):
            for turn in page:
                if turn.index < index and is_among(turn.index):
                    removed += join(turn.prompt, turn.output) if turn.forgotten else turn.removed
            if page[-1].index >= index:
                break
        return await last_shown_turn(partial(store.turns, key), branches, index), union(removed)

    async def _continuing(self, turn: TurnRecord, removed: Spans) -> TurnRecord:
        """Return an ended turn as one that the next turn can continue, without the blocks `removed`; cache its blocks.

        Blocks that were removed while the turn was not the newest one are still in its `base`.
        """
        head = turn
        if removed or turn.carries_all:
            remaining, _ = await without(turn.spans, removed, self._journal.blocks.read)
            if remaining != turn.base:
                lacking = overlap(turn.spans, removed) or removed
                head = replace(turn, carried=remaining, removed=union(turn.removed, () if turn.forgotten else lacking))
            if remaining == turn.spans and not turn.carries_all:
                head = turn  # it never had them, and may have been compacted
        await self._journal.blocks.load(union(head.prompt, head.spans, head.base))
        return head


def _checked(session_id: str, branches: Branches) -> Branches:
    if len(branches) > MAX_BRANCHES:
        raise TooManyVersionsError(session_id, MAX_BRANCHES)
    return branches
