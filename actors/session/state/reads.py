"""`SessionReads`: reads a session's runs, turns and events without changing it, and waits for runs and events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from turnwise.actors.session.state.run_events import turn_key
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.window.summary_expansion import find, originals
from turnwise.errors import (
    DeliveryNotFoundError,
    InvalidInputError,
    RunNotFoundError,
    SessionRevertedError,
    TurnNotFoundError,
    shown,
)
from turnwise.memory.conversation.blocks import AnyBlock, Summary, ToolUse
from turnwise.memory.conversation.branches import shown_among
from turnwise.memory.conversation.calls.tool_calls import PendingCall, decode_calls
from turnwise.memory.conversation.events import Event, EventRow, RunCancelled
from turnwise.memory.conversation.runs import RunRecord, Until, has_reached
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import union
from turnwise.memory.conversation.turns import Outcome, Turn, TurnRecord
from turnwise.memory.conversation.views.chat_messages import ChatMessage, chat_messages_of, parse_message_cursor
from turnwise.memory.conversation.views.event_filter import EventFilter
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.agents import agents_below, pending_calls
from turnwise.memory.stores.base import Page, SessionStore
from turnwise.memory.stores.reading import page_of_deliveries, read_runs, read_shown_turns, read_turns
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES, weight

FILTERED_PAGES = 10
"""How many pages of events one request looks through for events that are rare."""

MESSAGES_PAGE = 50
"""How many turns are read at once for their messages."""


class ReadSource(Protocol):
    """The source of a session's reads: the process that has activated the session, or its store."""

    state: SessionState

    async def look(self) -> None:
        """Check that the session exists, and that its row and the number of its last event are loaded."""

    async def load(self) -> None:
        """Make sure that `state` has the session's row, its newest turns and its open runs."""

    async def wait_for_run(self, deadline: float | None) -> bool:
        """Wait until an open run that `state` does not have may have changed; return False after the deadline."""

    async def wait_for_events(self, deadline: float) -> None:
        """Wait until there may be further events, or until the deadline."""


UNANSWERED_PAUSE_S = 0.01
"""How often the store is read for a run whose start it has not acknowledged yet, in seconds."""


class LiveSource:
    """The session in its own process, which wakes waiting callers at each change.

    Args:
        loaded: activates the session if its state is stale; see `Transactor.loaded`.
    """

    def __init__(self, state: SessionState, loaded: Callable[[], Awaitable[None]]) -> None:
        self.state = state
        self._loaded = loaded

    async def look(self) -> None:
        """See `load`."""
        await self._loaded()

    async def load(self) -> None:
        """Activate the session if its state is stale."""
        await self._loaded()

    async def wait_for_run(self, deadline: float | None) -> bool:
        """Activate the session again, which ends or resumes a run that was interrupted.

        If it is active, the commit that has stored the run is still to be answered: wait a little.
        """
        if not self.state.journal.stale:
            await asyncio.sleep(UNANSWERED_PAUSE_S)
        await self.load()
        return True

    async def wait_for_events(self, deadline: float) -> None:
        """Wait until an event is published."""
        await self.state.journal.log.wait_for_event(deadline - asyncio.get_running_loop().time())


class SessionReads:
    """The reads of a session. They change nothing, take no lock and never wait for a change to end."""

    def __init__(self, source: ReadSource) -> None:
        self._source = source
        self._state = source.state
        self._journal = source.state.journal
        self._load = source.load
        self.key = source.state.key
        self.session_id = source.state.session_id

    async def wait(self, run_id: str, timeout_s: float | None = None, until: Until = "ended") -> Outcome:
        """Wait until the run has ended, or is suspended, and return how it stands. Does not change the run.

        After `timeout_s` seconds, the run is returned as it is then, without its turn. A run that was suspended and
        has resumed before this caller was woken is waited for further. For a merged run, this is about the run that
        has its prompts.

        Args:
            until: with "settled", the wait is also over where the run waits for a decision about a tool call.

        Raises:
            RunNotFoundError: the session has no such run.
            StoreError: the run's end could not be stored.
        """
        await self._source.look()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - loop.time())
            run = self._state.open_run(run_id)
            if run and not await run.wait(left_s, until):
                if deadline is None or loop.time() < deadline:
                    continue  # it has resumed
                return Outcome(run.record, None)
            if run and not run.done.done():
                return Outcome(run.record, self._beside(self._journal.blocks.turn(run.turn)))
            ended = self._state.ended_run(run_id)
            record, turn = ended or (await self.stored_run(run_id), None)
            if record.leads_to:
                run_id = record.leads_to
            elif ended or has_reached(record.state, until, awaits_agents=record.awaits_agents):
                turn = turn if ended else await self._journal.records.find_turn_of(record)
                return Outcome(record, await self._read_turn(turn) if turn else None)
            elif not self._state.open_run(run_id) and not await self._source.wait_for_run(deadline):
                return Outcome(record, None)

    async def run(self, run_id: str) -> RunRecord:
        """Return the run's record, with its usage up to now; for a merged run, of the run that has its prompts."""
        await self._load()
        return await self._current(run_id)

    async def _current(self, run_id: str) -> RunRecord:
        while True:
            if run := self._state.open_run(run_id):
                return replace(run.record, usage=run.spent)
            ended = self._state.ended_run(run_id)
            record = ended[0] if ended else await self.stored_run(run_id)
            if not record.leads_to:
                return record
            run_id = record.leads_to

    async def leading(self, run_id: str) -> str:
        """Return the id of the run that has the prompts of this one: its own, unless it was merged."""
        return run_id if self._state.open_run(run_id) else (await self.run(run_id)).run_id

    async def stored_run(self, run_id: str) -> RunRecord:
        """Return a run of this session.

        Raises:
            RunNotFoundError: the session has no run with this id.
            SessionRevertedError: it has none, but the store was once reverted, so the run may have existed.
        """
        try:
            return await self._journal.records.find_run(run_id)
        except RunNotFoundError as error:
            if await self._journal.has_reverted():
                raise SessionRevertedError(self.session_id) from error
            raise

    async def pending(self, run_id: str) -> list[PendingCall]:
        """Return the calls that wait for a decision, the run's and its agents', in the order of the run's calls."""
        record = await self.run(run_id)
        run = self._state.open_run(record.run_id)
        uses = {block.call_id: block for block in run.output.blocks if isinstance(block, ToolUse)} if run else {}
        calls = decode_calls(record.calls) if record.is_open else {}
        return await pending_calls(self._journal.store, self.key.user_id, calls, uses)

    async def deliveries(self, cursor: str | None, limit: int) -> Page[Delivery]:
        """Return a page of the session's deliveries; see `page_of_deliveries`."""
        await self._source.look()
        return await page_of_deliveries(partial(self._journal.store.deliveries, **self.key._asdict()), cursor, limit)

    async def agents(self) -> list[SessionKey]:
        """Return the sessions of agents that this one has called, and of those below, leaves first.

        Also of a session that cannot be read, so that it can be deleted.
        """
        return await agents_below(self._journal.store, self.key)

    async def delivery(self, key: str) -> Delivery:
        """Return the session's delivery with this key.

        Raises:
            DeliveryNotFoundError: there is none.
        """
        await self._source.look()
        delivery = await self._journal.store.delivery(self.key, key)
        if delivery is None:
            raise DeliveryNotFoundError(self.key.session_id, key)
        return delivery

    async def row(self) -> SessionRecord:
        """Return the session's row as of its last commit, without its turns and runs."""
        await self._source.look()
        return self._journal.session

    @property
    def known_row(self) -> SessionRecord:
        """The session's row as it was read or committed last; `row` may have to read it anew."""
        return self._journal.session

    async def session(self) -> SessionRecord:
        """Return the session's row as of its last commit, with its open runs loaded."""
        await self._load()
        return self._journal.session

    @property
    def stores(self) -> tuple[SessionStore, HistoryStore | None]:
        """The session's store, and its history store if it has one."""
        return self._journal.store, self._journal.forwarder.history if self._journal.forwarder else None

    @property
    def is_activated(self) -> bool:
        """Whether this process owns, or has owned, the session."""
        return self._journal.session.epoch > 0

    @property
    def active_run_id(self) -> str | None:
        """The id of the active run, or None."""
        return self._state.active.run_id if self._state.active else None

    async def is_ending(self, run_id: str) -> bool:
        """Return whether the run's outcome is decided, whether or not it is stored yet.

        For a merged run, also one that another process merged, it is that of the run that has its prompts.
        """
        run = self._state.open_run(await self.leading(run_id))
        return run is None or run.closed

    @property
    def queued_run_ids(self) -> list[str]:
        """The ids of the queued runs, in order."""
        return [run.run_id for run in self._state.run_queue.queue]

    async def latest(self) -> Turn | None:
        """Return the newest turn: pending, queued, running or ended; None if there is none.

        For turns that have not ended see `SessionState.open_turns`.
        """
        await self._load()
        newest = next(reversed(self._state.open_turns), self._state.head)
        return self._beside(self._journal.blocks.turn(newest)) if newest else None

    def _beside(self, turn: Turn) -> Turn:
        """Return a turn that knows its versions."""
        return turn.beside(self._journal.session.branches)

    async def _read_turn(self, record: TurnRecord) -> Turn:
        (turn,) = await self._journal.blocks.read_turns([record])
        return self._beside(turn)

    async def turns(self, after: int = -1, limit: int = 100) -> list[Turn]:
        """Return up to `limit` shown turns with an index above `after`, by index; fewer, if they are large."""
        await self._load()
        read = partial(self._journal.store.turns, self.key)
        stored = await read_shown_turns(read, self._journal.session.branches, after, limit)
        opened = {turn.index: turn for turn in self._state.open_turns}
        turns = await self._journal.blocks.read_first_turns([opened.get(turn.index, turn) for turn in stored])
        return [self._beside(turn) for turn in turns]

    def next_after(self, index: int) -> int | None:
        """Return the index of a page's last turn if there may be turns behind it; None if there are none."""
        return index if index < self._journal.session.next_index - 1 else None

    async def turn(self, index: int | str) -> Turn:
        """Return the turn with this index, or with this id of the caller's, which costs one more read.

        Raises:
            TurnNotFoundError: no turn has this index or id.
        """
        await self._load()
        if isinstance(index, str):
            index = await self._index_of(index)
        opened = next((turn for turn in self._state.open_turns if turn.index == index), None)
        record = opened or await self._journal.records.find_turn(index)
        return await self._read_turn(record)

    async def _index_of(self, turn_id: str) -> int:
        event = await self._journal.store.event_of_key(self.key, turn_key(turn_id))
        if event and event.turn_index is not None:
            turns = await self._journal.store.turns(self.key, after=event.turn_index - 1, limit=1)
            if turns and turns[0].turn_id == turn_id:
                return turns[0].index
        raise TurnNotFoundError(self.session_id, turn_id)

    async def messages(self, before: str | None, limit: int) -> tuple[list[ChatMessage], bool]:
        """Return the newest `limit` messages before a cursor, oldest first, and whether there are earlier ones.

        The process that runs the session also has what its engine has answered so far.

        Raises:
            InvalidInputError: `before` is not a cursor.
        """
        place = None if before is None else parse_message_cursor(before)
        await self._load()
        end = self._journal.session.next_index
        end = end if place is None else min(end, place[0] + 1)
        newest: list[ChatMessage] = []
        count = total = 0
        async for messages in self._messages_back(end):
            earlier = [
                message
                for message in reversed(messages)
                if place is None or (message.turn_index, message.number) < place
            ]
            newest += earlier
            for message in earlier:
                total += BLOCK_BYTES + weight(message)
                if count < limit and (total <= PAGE_BYTES or not count):
                    count += 1
            if len(newest) > count:
                break
        return newest[:count][::-1], len(newest) > count

    async def _messages_back(self, end: int) -> AsyncIterator[list[ChatMessage]]:
        """Yield the messages of each turn below an index, the newest turn first. Reads some turns at once."""
        while end > 0:
            start = max(0, end - MESSAGES_PAGE)
            async for messages in self._messages_of_turns(start, end):
                yield messages
            end = start
            if end > 0:
                await asyncio.sleep(0)

    async def _messages_of_turns(self, start: int, end: int) -> AsyncIterator[list[ChatMessage]]:
        """Yield the messages of each turn, the newest turn first."""
        store = self._journal.store
        branches = self._journal.session.branches
        in_range = await read_turns(partial(store.turns, self.key), start, end)
        is_among = shown_among(branches)
        stored = [turn for turn in in_range if is_among(turn.index)]
        runs = {run.run_id: run for run in await read_runs(partial(store.runs, self.key), start, end)}
        opened = {turn.index: turn for turn in self._state.open_turns}
        active = self._state.active
        answered = (
            {active.run_id: active.streamed()} if active else {}
        )  # as of `opened`: a commit moves one to the other
        async for turn, prompt, output in self._journal.blocks.read_back(
            [opened.get(turn.index, turn) for turn in stored]
        ):
            run, streamed = runs.get(turn.run_id or ""), answered.get(turn.run_id or "", ())
            yield list(
                chat_messages_of(self.session_id, turn, run, prompt, output, streamed=streamed, branches=branches)
            )

    async def runs(self, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index; fewer, if they are large."""
        await self._load()
        return await self._journal.store.runs(self.key, after=after, limit=limit)

    async def events(
        self,
        after: int = 0,
        limit: int = 1000,
        *,
        run_id: str | None = None,
        only: EventFilter | None = None,
        timeout_s: float = 0.0,
    ) -> tuple[list[Event], int, bool]:
        """Return events numbered above `after`, the number to continue after, and whether run `run_id` has no more.

        A run's events end with its terminal event; what was added to the run later is read from there on.
        Without `run_id`, the third value is whether a page with events is the last one now. A page that is large is
        shorter: see `PAGE_BYTES`. Reads up to `limit` events, and of these returns only the run's if `run_id` is given;
        waits up to `timeout_s` for the first. Given a filter, it reads on for the first event that matches, but returns
        none after `FILTERED_PAGES` pages without one. Events that are no longer in memory come from the store, which
        has no live events. For a merged run, the events are those of the run that has its prompts.
        """
        found, last, is_all = await self._find_events(
            self._journal.events, after, limit, run_id=run_id, only=only, timeout_s=timeout_s
        )
        return cast(list[Event], found), last, is_all

    async def events_to_pass_on(
        self, after: int, limit: int, *, run_id: str | None, only: EventFilter | None, timeout_s: float
    ) -> tuple[list[Event | EventRow], int, bool]:
        """Return what `events` returns, for another process: stored events as rows, which that process decodes."""
        read = self._journal.events_to_pass_on if only is None else self._journal.events
        return await self._find_events(read, after, limit, run_id=run_id, only=only, timeout_s=timeout_s)

    async def _find_events(
        self,
        read: Callable[[int, int], Awaitable[Sequence[Event | EventRow]]],
        after: int,
        limit: int,
        *,
        run_id: str | None,
        only: EventFilter | None,
        timeout_s: float,
    ) -> tuple[list[Event | EventRow], int, bool]:
        """Do what `events` does, with the events that `read` returns: none of them is a row if there is a filter."""
        if run_id is None:
            await self._source.look()
        else:
            await self._load()
            record = await self._current(run_id)
            run_id, after = record.run_id, max(after, record.first_seq - 1)
        deadline = asyncio.get_running_loop().time() + timeout_s
        pages = 0
        while True:
            # If this is true, a run that is not open has not necessarily ended.
            in_doubt = self._journal.stale or self._journal.lost
            ended = run_id is not None and self._state.open_run(run_id) is None and not in_doubt
            events = await read(after, limit)
            after = events[-1].seq if events else after
            chosen = [
                event
                for event in events
                if run_id in (None, event.run_id) and (only is None or only.takes(cast(Event, event)))
            ]
            is_merged = run_id is not None and any(map(_is_merge, chosen))
            if run_id is not None and not is_merged:
                chosen, after = _up_to_end(chosen, after)
            is_all = not events or after >= self._journal.log.published
            done = ended and is_all and not is_merged
            remaining_s = deadline - asyncio.get_running_loop().time()
            if self._journal.lost and not chosen:
                raise self._journal.lost  # the run continues in another process
            pages += 1
            looks_on = ended if only is None else pages < FILTERED_PAGES
            if looks_on and not (chosen or is_all):
                await asyncio.sleep(0)
                continue
            if chosen or done or remaining_s <= 0 or (only and not is_all):
                if run_id is None:
                    return chosen, after, (bool(chosen) or only is not None) and is_all
                return chosen, after, done or any(event.terminal for event in chosen if not is_merged)
            if not events:
                await self._source.wait_for_events(deadline)
                pages = 0

    async def expand(self, summary: Summary) -> tuple[AnyBlock, ...]:
        """Return the blocks that a summary replaced, in order; summaries among them are expanded too.

        Raises:
            InvalidInputError: the summary is not in the session's current window, nor part of a summary there.
        """
        await self._load()
        active, head = self._state.active, self._state.head
        turns = [turn for turn in (head, active and active.turn) if turn]
        window_spans = union(*(part for turn in turns for part in (turn.spans, turn.base)))
        if not await find(summary, window_spans, self._journal.blocks.read):
            reason = f"it is not a summary of session {self.session_id!r}: pass a Summary from one of its turns"
            raise InvalidInputError("summary", shown(summary.text), reason)
        return await self._journal.blocks.read(await originals(summary, self._journal.blocks.read))


def _is_merge(event: Event | EventRow) -> bool:
    """Return whether an event ends a run that another one has taken the prompts of."""
    return isinstance(event, RunCancelled | EventRow) and event.leads_to is not None


def _up_to_end(events: list[Event | EventRow], after: int) -> tuple[list[Event | EventRow], int]:
    """Return a run's events up to its terminal event, if it is among them, and the number to continue after."""
    for count, event in enumerate(events, 1):
        if event.terminal:
            return events[:count], event.seq
    return events, after
