"""`Forgetting`: removes a turn from a session's requests and memories, or deletes the session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from turnwise.actors.inference.attempt import reason
from turnwise.actors.memory.attached import Eraser, MemorySlot
from turnwise.actors.memory.config import scopes_of
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.memory.memory_ingestion import MemoryIngestion
from turnwise.actors.session.memory.memory_retrieval import MemoryRetrieval
from turnwise.actors.session.memory.unsaved_turns import SavingProgress
from turnwise.actors.session.state.alarm import Alarm
from turnwise.actors.session.state.journal import FLUSH_S
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.actors.session.window.leaving_out import carrying, without
from turnwise.actors.session.window.summary_expansion import originals, reach
from turnwise.actors.session.window.window_compaction import WindowCompaction
from turnwise.errors import (
    CorruptRecordError,
    LongTermMemoryError,
    SessionChangedError,
    SessionInUseError,
    SessionNotFoundError,
    TurnNotFoundError,
)
from turnwise.memory.conversation.blocks import CLEARED, Summary, encode
from turnwise.memory.conversation.branches import cleared as cleared_branches, is_shown, shown_among
from turnwise.memory.conversation.events import Event, SetsInput, TurnForgotten, TurnsCleared
from turnwise.memory.conversation.marks import count_marks
from turnwise.memory.conversation.remainder import from_user
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import (
    Seen,
    Span,
    Spans,
    join,
    overlap,
    places,
    size,
    subtract,
    to_places,
    union,
)
from turnwise.memory.conversation.turns import TurnRecord, turn_id
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.longterm.base import Scope, is_read_only
from turnwise.memory.longterm.retention.deletion import Erasure, erase
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.stores.agents import hand_back_results
from turnwise.memory.stores.reading import INDEX, SEQ, pages

TURNS_PAGE = 1000
"""How many turns are read at once."""


class Forgetting:
    """Removes a turn from later requests, from summaries and from long-term memories; deletes sessions.

    While `forget_turn` awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the commit | reads; a compaction, which is then discarded | all of it or nothing |
    | stopping the background compaction | reads | a turn forgotten by the session only: repeat the call |
    | memories | everything; they no longer get the turn, but a run that begins may recall it | the same |
    | memories, searched again for such a run | everything | the turn forgotten everywhere |

    The history keeps the turn unchanged until the session is deleted. A delete is one change that clears memories
    first, so that it can be repeated if it fails; a crash in it leaves the session, with less in memories. An agent's
    result that its caller has not got yet goes to the caller before.
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        *,
        compaction: WindowCompaction,
        retrieval: MemoryRetrieval,
        ingestion: MemoryIngestion,
        progress: SavingProgress,
        alarm: Alarm,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._compaction = compaction
        self._retrieval = retrieval
        self._ingestion = ingestion
        self._progress = progress
        self._alarm = alarm
        self._cleared = Spans()
        """Places of the log that were cleared in this process: `prune` does not clear them again."""

    async def forget_turn(self, index: int, *, verify: bool = False) -> Forgotten:
        """Forget what a turn added; return what was removed. May be repeated; repeat it if a memory fails.

        Args:
            verify: whether memories are checked afterwards for remains; see `deletion.erase`.

        Raises:
            TurnNotFoundError: no such turn exists, or it has not ended.
            SessionInUseError: a run is active, and its requests may contain the turn.
            LongTermMemoryError: memories failed; the error names them. The session and the other memories have
                forgotten the turn.
        """
        await self._transactor.loaded()
        done = Forgotten()

        async def change() -> None:
            nonlocal done
            if active := self._state.active:
                raise SessionInUseError(self._state.session_id, active.run_id)
            turn = await self._journal.records.find_turn(index)
            if turn.is_open:
                raise TurnNotFoundError(self._state.session_id, index)
            if not turn.forgotten:
                done = Forgotten(turns=1, summaries=await self._leave_out(turn))
            # Repeated even if the turn is forgotten already: an earlier attempt may have stopped after its commit.
            done += Forgotten(waiting=int(self._progress.make_private(index)))
            await self._compaction.stop()  # a compaction may be saving the turn in a memory
            self._compaction.watch()

        await self._transactor.run(change)
        done += await self._forget_in_memories(index, verify=verify)
        await self._retrieval.recall_anew()
        return done

    async def clear(
        self,
        keep_last: int = 0,
        *,
        memory: bool = True,
        verify: bool = False,
        updated_at: float | None = None,
        key: str | None = None,
    ) -> Forgotten:
        """Remove all turns but the newest from the history, for good; return what was removed. May be repeated.

        Memories are cleared first, so that a call that fails can be repeated. Then one commit removes the turns, the
        texts of their blocks, those of summaries of them, and their events. Forks keep the blocks that they use. Runs
        keep their records, without a turn.

        While it awaits the commit, reads and streaming go on, and a crash leaves all of it or nothing. A crash after it
        may leave the turns' events in the history store: repeat the call.

        Args:
            keep_last: how many shown turns stay, the pending one included. Versions that are younger than the first of
                them stay, too.
            memory: if false, memories keep what they have of the turns.
            verify: see `forget_turn`.
            updated_at: clear only if the session's last commit was at this time.
            key: identifies this call; a repetition after the commit removes no more turns, and returns how many went.

        Raises:
            SessionInUseError: a run is active or queued; nothing was removed.
            SessionChangedError: the last commit was not at `updated_at`; nothing was removed.
            LongTermMemoryError: memories failed; the history was not changed.
        """

        async def change() -> Forgotten:
            event = await self._journal.store.event_of_key(self._state.key, key) if key else None
            if isinstance(event, TurnsCleared):
                await self._clear_history([], await self._all_turns())
                return Forgotten(turns=event.turns)
            if busy := self._state.busy:
                raise SessionInUseError(self._state.session_id, busy.run_id)
            if updated_at not in (None, self._journal.session.updated_at):
                raise SessionChangedError(self._state.session_id)
            turns = await self._all_turns()
            is_among = shown_among(self._journal.session.branches)
            shown = [turn for turn in turns if is_among(turn.index)]
            first = shown[-keep_last:][0].index if keep_last and shown else self._journal.session.next_index
            removed = [turn for turn in turns if turn.index < first]
            remaining = turns[len(removed) :]
            waiting = sum(self._progress.make_private(turn.index) for turn in removed)
            done = Forgotten(waiting=waiting, was_checked=bool(memory and verify))
            await self._compaction.stop()
            if memory:
                for turn in removed:
                    done += await self._forget_in_memories(turn.index, verify=verify)
            if removed:
                done += await self._remove(removed, remaining, key)
            await self._clear_history(removed, remaining)
            self._compaction.watch()
            return done

        done = await self._transactor.run(change)
        await self._retrieval.recall_anew()
        return done

    async def prune(self, limit: int) -> int:
        """Remove the oldest turns until the others have at most `limit` blocks; return how many they have then.

        The newest shown turn stays, and so do turns that a memory lacks. Call it within a change, while no run is
        active or queued.
        """
        turns = await self._all_turns()
        is_among = shown_among(self._journal.session.branches)
        shown = [turn.index for turn in turns if is_among(turn.index)]
        last = self._progress.saved + 1 if self._progress.writable else self._journal.session.next_index
        stored = sum(map(_size, turns))
        first, left = -1, stored
        for turn, following in pairwise(turns):
            left -= _size(turn)
            if stored <= limit or following.index > min(last, shown[-1] if shown else -1):
                break
            if is_among(following.index):
                first, stored = following.index, left
        removed = [turn for turn in turns if turn.index < first]
        if removed:
            remaining = turns[len(removed) :]
            await self._compaction.stop()
            await self._remove(removed, remaining, None, clears_again=False)
            await self._clear_history(removed, remaining)
            self._compaction.watch()
        return stored

    async def _all_turns(self) -> list[TurnRecord]:
        read = partial(self._journal.store.turns, self._state.key, limit=TURNS_PAGE)
        return [turn async for page in pages(read, -1, INDEX) for turn in page]

    async def _remove(
        self,
        removed: Sequence[TurnRecord],
        remaining: Sequence[TurnRecord],
        key: str | None,
        *,
        clears_again: bool = True,
    ) -> Forgotten:
        """Store a history of the `remaining` turns only, in one commit.

        Args:
            clears_again: whether places are cleared again that were cleared before: blocks that a fork had then, and
                has no more, are still there.
        """
        session, blocks = self._journal.session, self._journal.blocks
        first = remaining[0].index if remaining else session.next_index
        session = replace(session, branches=cleared_branches(session.branches, first))
        remaining_blocks = _remaining_blocks(session, removed, remaining)
        turns, summaries = [], 0
        removed_ids = {turn_id(session.session_id, turn.index) for turn in removed}
        for turn in remaining:
            continued, input_summaries = await self._restrict(turn.input, remaining_blocks)
            carried, carried_summaries = await self._restrict(turn.carried, remaining_blocks)
            parent = None if turn is remaining[0] or turn.parent in removed_ids else turn.parent
            turns.append(replace(turn, parent=parent, input=continued, carried=carried))
            summaries += input_summaries + carried_summaries
        spans = union(*(part for turn in turns for part in (turn.prompt, turn.input, turn.carried, turn.output)))
        stay = await reach(spans, blocks.read)
        cleared = encode(CLEARED)
        gone_places = subtract((Span(session.log, 0, session.log_size),), stay)
        places_to_clear = gone_places if clears_again else subtract(gone_places, self._cleared)
        last = removed[-1].index
        ended = (turn for turn in reversed(turns) if not turn.is_open)
        head = next((turn for turn in ended if is_shown(session.branches, turn.index)), None)
        base = to_places(head.base if head else (), session.log)
        values = {"input": base, "up_to": last, "turns": len(removed), "key": key}
        await blocks.load(spans)
        await self._transactor.commit(
            replace(session, marks=sum(map(count_marks, turns))),
            [(TurnsCleared, values)],
            turns=turns,
            dropped_turns=[turn.index for turn in removed],
            forget_turns=last,
            cleared_blocks=[
                (position, cleared) for span in places_to_clear for position in range(span.start, span.stop)
            ],
        )
        self._cleared = gone_places
        self._state.replace_backlog(turns)
        self._state.continue_from(head)
        self._state.drop_turns({turn.index for turn in removed})
        self._journal.drop_cleared(spans)
        return Forgotten(turns=len(removed), summaries=summaries)

    async def _clear_history(self, removed: Sequence[TurnRecord], remaining: Sequence[TurnRecord]) -> None:
        """Delete the events of removed turns from the history store, also those that an earlier call left."""
        forwarder = self._journal.forwarder
        last = remaining[0].index - 1 if remaining else self._journal.session.next_index - 1
        until = self._journal.log.last_seq if removed else 0
        if forwarder is None or last < 0:
            return
        await forwarder.flush(FLUSH_S)  # otherwise events in flight would arrive after the delete
        without_input = await self._without_input(forwarder.history, last, until)
        await forwarder.history.delete(self._state.key, turns_up_to=last, instead=without_input)

    async def _without_input(self, history: HistoryStore, last: int, until: int) -> list[Event]:
        """Return the events that have the input of a run, without that input; none of turns up to `last`.

        The input may have blocks of removed turns. Only events before the last removal of turns are returned: their
        number is below `until`, or below that of the last `TurnsCleared`.
        """
        without_input: list[Event] = []
        async for events in pages(partial(history.events, self._state.key), 0, SEQ):
            for event in events:
                is_kept = event.turn_index is None or event.turn_index > last
                if isinstance(event, TurnsCleared):
                    until = max(until, event.seq)
                elif isinstance(event, SetsInput) and event.input_blocks and is_kept:
                    without_input.append(event.model_copy(update={"input": None, "input_blocks": ()}))
        return [event for event in without_input if event.seq < until]

    async def _restrict(self, spans: Spans, remaining_blocks: Spans) -> tuple[Spans, int]:
        """Return the part of `spans` that is in `remaining_blocks`, and how many summaries covered anything else.

        Each such summary is replaced by the blocks of `remaining_blocks` that it covered.
        """
        parts: list[Span] = []
        summaries = 0
        blocks = await self._journal.blocks.read(spans)
        for span, block in zip(places(spans), blocks, strict=True):
            if not isinstance(block, Summary):
                parts += overlap((span,), remaining_blocks)
                continue
            stands_for = await originals(block, self._journal.blocks.read)
            if subtract(stands_for, remaining_blocks):
                parts += overlap(stands_for, remaining_blocks)
                summaries += 1
            else:
                parts.append(span)
        covered = Seen()
        restricted = join(part for span in parts for part in covered.take(span))
        restricted_places, all_blocks = places(restricted), (*blocks, *await self._journal.blocks.read(restricted))
        # Prompts of answers that stay may have been removed.
        indices = from_user(all_blocks, range(len(blocks), len(all_blocks)))
        return join(restricted_places[index - len(blocks)] for index in indices), summaries

    async def delete(
        self,
        *,
        memory: bool = True,
        verify: bool = False,
        updated_at: float | None = None,
        keeps_events: bool = False,
    ) -> Forgotten:
        """Delete the session permanently, with what memories keep of it; forks keep the blocks that they use.

        Memories are cleared first, so that a delete that fails can be repeated.

        Args:
            memory: if false, memories keep what they have of the session.
            verify: see `forget_turn`.
            updated_at: delete only if the session's last commit was at this time.
            keeps_events: whether the history store keeps the session's events; see `Journal.delete`.

        Raises:
            SessionInUseError: a run is active or queued; nothing was deleted.
            SessionChangedError: the last commit was not at `updated_at`; nothing was deleted.
            LongTermMemoryError: memories failed; the session was not deleted.
        """

        async def change() -> Forgotten:
            if busy := self._state.busy:
                raise SessionInUseError(self._state.session_id, busy.run_id)
            if updated_at not in (None, self._journal.session.updated_at):
                raise SessionChangedError(self._state.session_id)
            await self._compaction.stop()
            done = Forgotten(waiting=await self._ingestion.stop())
            try:
                if memory:
                    done += await self._forget_in_memories(verify=verify)
                if self._journal.session.called_by is not None:
                    await self._hand_back_results()
                await self._transactor.store_unbilled()  # for the ledger, which stays
                turns = await self._journal.delete(keeps_events=keeps_events)
            except BaseException:
                self._ingestion.load()
                raise
            self._mark_deleted()
            return done + Forgotten(sessions=1, turns=turns)

        try:
            return await self._transactor.run(change)
        except CorruptRecordError:
            if not self._journal.stale:
                raise
        async with self._transactor.alone:
            return await self._delete_unread(updated_at, memory=memory, verify=verify)

    async def _delete_unread(self, updated_at: float | None, *, memory: bool, verify: bool) -> Forgotten:
        """Delete a session that cannot be loaded, because one of its records is corrupt.

        Raises:
            CorruptRecordError: the session's record cannot be read, so its user's memories cannot be found.
        """
        done = Forgotten()
        try:
            session = await self._journal.store.get(self._state.key)
        except CorruptRecordError:
            if memory and self._engines.current.all_memories:
                raise
            turns = await self._journal.delete_unread()
        else:
            if updated_at not in (None, session.updated_at):
                raise SessionChangedError(self._state.session_id)
            self._journal.read_row(session)
            if memory:
                done += await self._forget_in_memories(verify=verify)
            if session.called_by is not None:
                with suppress(CorruptRecordError):
                    await self._hand_back_results()
            turns = await self._journal.delete()
        self._mark_deleted()
        return done + Forgotten(sessions=1, turns=turns)

    async def _hand_back_results(self) -> None:
        """Have the caller of an agent get its result although the session is deleted; see `hand_back_results`."""
        await self._alarm.expect()
        if (due_at := await hand_back_results(self._journal.store, self._state.key)) is not None:
            self._alarm.tell(due_at)

    def _mark_deleted(self) -> None:
        error = SessionNotFoundError(self._state.session_id)
        self._journal.lose(error)
        self._journal.log.publish()
        self._transactor.give_up(error)

    async def _leave_out(self, turn: TurnRecord) -> int:
        """Remove a turn from the window that the next turn continues; return how many summaries it was in."""
        head = self._state.head
        if head is None:
            raise TurnNotFoundError(self._state.session_id, turn.index)
        turn_spans = join(turn.prompt, turn.output)
        remaining, summaries = await without(head.base, turn_spans, self._journal.blocks.read)
        forgotten = replace(turn, forgotten=True)
        if head.index == turn.index:
            forgotten = head = replace(head, forgotten=True, carried=remaining)
            turns = [head]
        elif remaining == head.base:
            turns = [forgotten]
        else:
            head = carrying(head, remaining, turn_spans)
            turns = [forgotten, head]
        await self._journal.blocks.load(head.base)
        await self._transactor.commit(self._journal.session, [(TurnForgotten, {"turn_index": turn.index})], turns=turns)
        self._state.continue_from(head)
        return summaries

    async def as_forked(self, turn: TurnRecord) -> TurnRecord:
        """Return an ended turn for a fork to continue: without forgotten blocks. Reads all turns up to it."""
        forgotten: list[Span] = []
        async for page in pages(partial(self._journal.store.turns, self._state.key), -1, INDEX):
            forgotten += (span for record in page if record.forgotten for span in join(record.prompt, record.output))
            if page[-1].index >= turn.index:
                break
        turn = replace(turn, carried=(), removed=())
        spans = turn.spans
        remaining, _ = await without(spans, tuple(forgotten), self._journal.blocks.read) if forgotten else (spans, 0)
        return turn if remaining == spans else carrying(turn, remaining, tuple(forgotten))

    async def _forget_in_memories(self, index: int | None = None, *, verify: bool = False) -> Forgotten:
        """Make all writable memories forget the session, or one turn of it, after saves in flight have arrived.

        Raises:
            LongTermMemoryError: some memories failed; all were tried.
        """
        await self._ingestion.wait_for_saves()
        run_resources = self._engines.current
        slots = [slot for slot in run_resources.all_memories if not is_read_only(slot.memory)]
        results = await asyncio.gather(
            *(self._forget_in_memory(slot, index, verify=verify) for slot in slots), return_exceptions=True
        )
        items: dict[str, int] = {}
        erased: dict[str, Erasure] = {}
        failures: list[str] = []
        for slot, result in zip(slots, results, strict=True):
            if isinstance(result, BaseException):
                failures.append(f"{slot.name}: {reason(result)}")
            elif isinstance(result, Erasure):
                items[slot.name], erased[slot.name] = result.items, result
            else:
                items[slot.name] = result
        if failures:
            raise LongTermMemoryError(f"{'; '.join(failures)}. Repeat the call")
        self._retrieval.memories_forgot()
        notes = 0
        if index is None and run_resources.notes is not None:
            for scope in self._scopes:
                notes += await run_resources.notes.forget(scope)
        return Forgotten(items=items, erased=erased, notes=notes, was_checked=verify)

    @property
    def _scopes(self) -> list[Scope]:
        """See `scopes_of`."""
        return scopes_of(self._journal.session, self._engines.config.memory)

    async def _forget_in_memory(self, slot: MemorySlot, index: int | None, *, verify: bool) -> int | Erasure:
        turn_filter: dict[str, Any] = {} if index is None else {"turn_index": index}
        own, *others = self._scopes
        forgotten = await self._forget_of(slot, own, turn_filter, verify=verify)
        for scope in others:
            forgotten = forgotten + await self._forget_of(slot, scope, turn_filter, verify=verify)  # type: ignore[operator]
        return forgotten

    async def _forget_of(
        self, slot: MemorySlot, scope: Scope, turn_filter: dict[str, Any], *, verify: bool
    ) -> int | Erasure:
        if not verify:
            return await slot.memory.forget(scope, **turn_filter)
        if isinstance(slot.memory, Eraser):
            return await slot.memory.erase(scope, **turn_filter)
        return await erase(slot.memory, scope, **turn_filter)


def _size(turn: TurnRecord) -> int:
    """Return how many blocks a turn has added."""
    return size(turn.prompt) + size(turn.output)


def _remaining_blocks(
    session: SessionRecord, removed_turns: Sequence[TurnRecord], remaining: Sequence[TurnRecord]
) -> Spans:
    """Return the blocks that the `remaining` turns added, with blocks made from them, such as texts for attachments.

    These are all blocks of the log from their first prompt on, except the blocks that the `removed_turns` added.
    """
    added = [part for turn in remaining for part in (turn.prompt, turn.output)]
    first = min((span.start for part in added for span in part if span.log == session.log), default=session.log_size)
    if any(span.log != session.log for part in added for span in part):
        first = 0  # a fork begins with a turn of its parent, so all blocks of its own log are later
    removed = [part for turn in removed_turns for part in (turn.prompt, turn.output)]
    return union(*added, subtract((Span(session.log, first, session.log_size),), union(*removed)))
