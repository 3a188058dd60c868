"""Imports a session from an archive, page by page.

The import has an epoch of its own: a process that opens the session meanwhile fences it off.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from functools import partial

from turnwise.errors import ArchiveError, SessionFencedError, SessionNotFoundError
from turnwise.memory.archive.block_order import Order, References
from turnwise.memory.archive.block_positions import LOG, PAGE, move_summary, move_turn
from turnwise.memory.archive.files import FileLines
from turnwise.memory.archive.format import Line, inputs_of, stored_blocks_of
from turnwise.memory.archive.validation import (
    check_event,
    check_new,
    check_run,
    check_turn,
    checked_block,
    checked_delivery,
)
from turnwise.memory.conversation.blocks import Summary, decode, encode
from turnwise.memory.conversation.events import RUN_IDS, Event, Places
from turnwise.memory.conversation.marks import count_marks
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Seen, Span, Spans, join, overlap
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.files.access import FileAccess
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.reading import INDEX, pages, read_blocks, read_runs
from turnwise.memory.stores.search.records import MessageText, Searchable, turn_texts
from turnwise.memory.values.frozen_json import FrozenDict, freeze

UNFINISHED: FrozenDict = freeze({"turnwise.import": "unfinished"})
"""The metadata of a session during its import. The session is ended and has no other metadata meanwhile."""

MAX_DELIVERIES = 10_000
"""The most deliveries of an archive: they are stored by one commit."""


class SessionImport:
    """Checks and stores the lines of an archive in order, and commits them in pages.

    Until `finish` the session is an ended one whose metadata is `UNFINISHED`.

    Args:
        session: its row after the import.
        archived_key: the session's key in the archive.
        files: the files of the store.
    """

    def __init__(
        self, store: SessionStore, session: SessionRecord, archived_key: SessionKey, files: FileAccess | None = None
    ) -> None:
        self._store = store
        self._session = session
        self._archived_key = archived_key
        self._files = FileLines(session.key, files)
        row = replace(session, status="ended", metadata=UNFINISHED, params=FrozenDict(), ttl_s=None)
        self._row = replace(row, log_size=0, next_index=0, seq=0, branches=(), members=FrozenDict())
        self._blocks: list[str] = []
        self._turns: list[TurnRecord] = []
        self._events: list[Event] = []
        self._deliveries: list[Delivery] = []
        """Stored by the last commit: until then the session is ended, so none could be carried out."""
        self._block_count = 0
        """How many blocks were read."""
        self._order = Order()
        self._references = References()
        self._has_all_blocks = False
        """Whether a line of another kind has come, as the `end` line at the latest: no block follows it."""
        self._base: Spans = ()
        """The `base` of the last turn: what the next turn continues."""
        self._added = Seen()
        """The blocks that turns have added."""
        self._added_by_line: list[tuple[Span, int]] = []
        """The same, with the number of the turn's line."""
        self._status: dict[int, tuple[str, str | None]] = {}
        """By index: the turn's status, and the id of its run in the archive."""
        self._run_ids: set[str] = set()
        self._idempotency_keys: set[str] = set()
        self._event_keys: set[str] = set()
        self._delivery_ids: set[str] = set()
        self._delivery_keys: set[str] = set()
        self._event_blocks = 0
        """How many blocks the events say that they stored."""
        self._last_turn = self._last_run_turn = -1
        """The indexes of the last turn, and of the turn of the last run."""
        self._last_seq = 0
        self._marks = 0
        """How many marks its turns have."""

    async def begin(self) -> None:
        """Create the session.

        Raises:
            SessionExistsError: the id is taken.
        """
        self._row = await self._store.create(self._row)
        self._row = (await self._store.activate(self._row.key)).session

    async def add(self, line: Line) -> None:
        """Check a line, and store it with the next commit.

        Raises:
            ArchiveError: it is wrong, or contradicts the lines before it.
        """
        if line.kind != "block" and not self._has_all_blocks:
            self._has_all_blocks = True
            await self._check_all_blocks(line)
        match line.kind:
            case "block":
                self._blocks.append(self._block(line))
                self._block_count += 1
            case "turn":
                self._turns.append(await self._turn_of(line))
            case "run":
                await self._commit(new_run=self._run_of(line))
            case "event":
                self._events.append(self._event(line))
            case "delivery":
                self._deliveries.append(self._delivery(line))
            case "file":
                await self._files.add(line)
        if max(len(self._blocks), len(self._turns), len(self._events)) >= PAGE:
            await self._commit()

    async def _check_all_blocks(self, line: Line) -> None:
        if self._block_count != self._session.log_size:
            line.refuse(f"the session has {self._session.log_size} blocks, and the archive {self._block_count}")
        if circle := await self._references.circle():
            raise ArchiveError(circle, "a summary replaces itself, directly or through other summaries")
        for number, spans in self._references:
            if reason := await self._order.check(spans):
                raise ArchiveError(number, f"the blocks that a summary replaces cannot be sent to a model: {reason}")

    async def finish(self, line: Line) -> SessionRecord:
        """Commit the remaining lines and the session's final row; return the row.

        Raises:
            ArchiveError: a turn added only one part of a pair: see `Order`.
        """
        await self._files.finish()
        if problem := await self._order.check_pairs(sorted(self._added_by_line)):
            number, reason = problem
            raise ArchiveError(number or line.number, reason)
        await self._commit()
        if isinstance(self._store, Searchable):
            await self._commit_texts()
        members = {name: role for name, role in self._session.members.items() if name != self._session.user_id}
        session = replace(self._session, members=FrozenDict(members))
        final = replace(
            session, log=self._row.log, epoch=self._row.epoch, revision=self._row.revision, marks=self._marks
        ).committed()
        additions = [DeliveryChange(None, delivery) for delivery in self._deliveries]
        await self._store.commit(final.key, final.epoch, Commit(session=final, deliveries=additions, joined=[*members]))
        return final

    async def undo(self) -> None:
        """Delete what was stored, even if another process has opened the session; nothing if it no longer exists."""
        try:
            session = await self._store.get(self._row.key)
            if self._row.log and session.log == self._row.log:  # it has no log until `begin` created it
                await self._store.delete(session.key, epoch=session.epoch, log=session.log)
        except (SessionNotFoundError, SessionFencedError):
            return

    async def _commit(self, new_run: RunRecord | None = None) -> None:
        row = self._row.committed(log_size=self._row.log_size + len(self._blocks))
        parts = Commit(session=row, blocks=self._blocks, turns=self._turns, new_run=new_run, events=self._events)
        await self._store.commit(row.key, row.epoch, parts)
        await asyncio.sleep(0)  # so that other tasks run: a store in memory never waits
        self._row, self._blocks, self._turns, self._events = row, [], [], []

    async def _commit_texts(self) -> None:
        """Store the texts that search finds, page by page: until the last commit nobody uses the session."""
        key = self._row.key
        async for turns in pages(partial(self._store.turns, key, limit=PAGE), -1, INDEX):
            records = await read_runs(partial(self._store.runs, key), turns[0].index, turns[-1].index + 1)
            runs = {run.turn_index: run for run in records}
            texts: list[MessageText] = []
            for turn in turns:
                prompt, output = [
                    [decode(text) for text in await read_blocks(self._store, part)]
                    for part in (join(turn.prompt), join(turn.output))
                ]
                texts += turn_texts(key.session_id, turn, runs.get(turn.index), prompt, output)
            row = self._row.committed()
            await self._store.commit(key, row.epoch, Commit(session=row, texts=texts))
            self._row = row

    def _block(self, line: Line) -> str:
        block = checked_block(line)
        self._order.add(block)
        if isinstance(block, Summary):
            block = move_summary(block, lambda span: self._place(line, span, self._session.log_size))
            self._references.add(self._block_count, block, line.number)
        return encode(block)

    def _place(self, line: Line, span: Span, size: int) -> Span:
        """Return the position of a span in the session's log."""
        if span.log != LOG or not 0 <= span.start <= span.stop <= size:
            line.refuse(f"it names blocks {span.start} to {span.stop} of log {span.log!r}, and there are {size} blocks")
        return Span(self._row.log, span.start, span.stop)

    async def _turn_of(self, line: Line) -> TurnRecord:
        turn = line.record(TurnRecord)
        if not self._last_turn < turn.index < self._session.next_index:
            line.refuse(
                f"turn {turn.index} follows turn {self._last_turn}, and new turns begin at {self._session.next_index}"
            )
        if turn.status in ("queued", "running"):
            line.refuse(f"turn {turn.index} is {turn.status}, and an archive has no open runs")
        last_status, _ = self._status.get(self._last_turn, ("", None))
        if last_status == "pending":
            line.refuse(f"turn {turn.index} follows turn {self._last_turn}, which is pending")
        self._last_turn = turn.index
        self._status[turn.index] = turn.status, turn.run_id
        parent = turn.parent  # session_id#index
        if parent and parent.rpartition("#")[0] == self._archived_key.session_id:
            parent = f"{self._session.session_id}#{parent.rpartition('#')[2]}"
        turn = replace(turn, parent=parent, run_id=self._run_id(turn.run_id))
        turn = move_turn(turn, lambda span: self._place(line, span, self._block_count))
        check_turn(line, turn)
        if not self._order.is_prompt((*turn.prompt, *turn.appended)):
            line.refuse(f"turn {turn.index} has a prompt with blocks that only a run adds")
        for span in join(turn.prompt, turn.output):
            if self._added.take(span) != [span]:  # a part of it was there
                line.refuse(f"turn {turn.index} added a block that another turn added")
            self._added_by_line.append((span, line.number))
        if turn.status == "pending" and overlap(turn.prompt, self._base):
            line.refuse(f"turn {turn.index} has a prompt that is also in the turn before")
        self._base = turn.base
        self._marks += count_marks(turn)
        for spans in (turn.spans, turn.base):
            if reason := await self._order.check(spans, is_pending=turn.status == "pending"):
                line.refuse(f"turn {turn.index} cannot be sent to a model: {reason}")
        return turn

    def _run_of(self, line: Line) -> RunRecord:
        run = line.record(RunRecord, **self._session.key._asdict())
        if not self._last_run_turn < run.turn_index < self._session.next_index:
            line.refuse(f"the run of turn {run.turn_index} follows the run of turn {self._last_run_turn}")
        if run.is_open:
            line.refuse(f"run {run.run_id!r} is {run.state}, and an archive has no open runs")
        check_run(line, run, self._status.get(run.turn_index), self._session.seq)
        check_new(line, "run", run.run_id, self._run_ids)
        check_new(line, "idempotency key", run.idempotency_key, self._idempotency_keys)
        self._last_run_turn = run.turn_index
        return replace(run, run_id=self._run_id(run.run_id) or "", successor=self._run_id(run.successor))

    def _event(self, line: Line) -> Event:
        event = line.event(self._session.key)
        if not self._last_seq < event.seq <= self._session.seq:
            line.refuse(
                f"event {event.seq} follows event {self._last_seq}, and the session's last is {self._session.seq}"
            )
        check_event(line, event)
        check_new(line, "event key", event.key, self._event_keys)
        if any(not 0 <= start <= stop <= self._block_count for start, stop in stored_blocks_of(event)):
            line.refuse(f"event {event.seq} names blocks that do not exist")
        for places in inputs_of(event):
            if any(log or not 0 <= start <= stop for log, start, stop in places) or _count(places) > self._block_count:
                line.refuse(f"event {event.seq} names blocks that do not exist, or blocks twice")
            if max((stop for _, _, stop in places), default=0) > self._block_count:
                line.refuse(f"event {event.seq} names blocks that do not exist")
        self._event_blocks += sum(stop - start for start, stop in stored_blocks_of(event))
        # Each block is stored by one event. Events that named blocks again and again would take much memory when read.
        if self._event_blocks > 4 * self._block_count:
            line.refuse("its events name more than four times as many blocks as there are")
        self._last_seq = event.seq
        run_ids = {name: self._run_id(getattr(event, name)) for name in RUN_IDS if hasattr(event, name)}
        return event.model_copy(update=run_ids)

    def _delivery(self, line: Line) -> Delivery:
        delivery = checked_delivery(line, self._session.key)
        if self._session.status == "ended":
            line.refuse("a session that has ended has no deliveries")
        if len(self._deliveries) >= MAX_DELIVERIES:
            line.refuse(f"it has more than {MAX_DELIVERIES} deliveries")
        if delivery.run_id in self._run_ids:
            line.refuse(f"delivery {delivery.key!r} was carried out: its run {delivery.run_id!r} is in the archive")
        check_new(line, "delivery", delivery.delivery_id, self._delivery_ids)
        check_new(line, "key of a delivery", delivery.key, self._delivery_keys)
        return replace(delivery, delivery_id=self._run_id(delivery.delivery_id) or "")

    def _run_id(self, run_id: str | None) -> str | None:
        """Return the id of an imported run or delivery. These are unique among all sessions, so a copy gets new ids."""
        if run_id is None or self._archived_key == self._session.key:
            return run_id
        name = "\0".join((*self._session.key, run_id))
        return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _count(places: Places) -> int:
    return sum(stop - start for _, start, stop in places)
