"""Sessions as lines of JSON: all that a store has of one, for a file, for another store, for later.

The first line has the version and the session's row. Then come its blocks, its turns, its runs and its events, each on
a line of its own, and last how many lines there are and their checksum. An archive is whole on its own: of a fork it
has what that spans of other sessions' logs too, behind its own log. It has no live run: what is open at the export
stands in it as interrupted, settled, with its terminal event. Names of logs, and epochs, are a store's own and not in
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from turnwise.errors import ArchiveError, CorruptRecordError, InvalidIdError, SessionChangedError, SessionNotFoundError
from turnwise.memory.archive.block_positions import PAGE, blocks_of, find_places, move_block, move_turn, turns_of
from turnwise.memory.archive.format import OWN_ID, LineWriter, event_line, read_lines, record_line
from turnwise.memory.archive.importer import Incoming
from turnwise.memory.archive.open_ends import interrupt
from turnwise.memory.archive.validation import check_session_line
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.ids import check_id, own_id
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.records import check_events, check_session, is_sealed
from turnwise.memory.user_ids import find_session, public_record


async def export_session(
    store: SessionStore,
    session_id: str,
    write: Callable[[str], object],
    *,
    user_id: str | None = None,
    history: HistoryStore | None = None,
) -> None:
    """Write a session to an archive, line by line, each with its newline.

    Reads in pages, holds one of them at a time and the output of an open run, and changes nothing. What a cancelled or
    failed call has written has no end, and will not be imported.

    Args:
        user_id: whose it is; needed for a session that was made with `enforce_user`, whose id is its user's own.
        history: where its events are, beside those in the store.

    Raises:
        SessionNotFoundError: there is none of this id.
        SessionChangedError: something was committed to it meanwhile.
        CorruptRecordError: something of it cannot be read.
        StillEncryptedError: it is encrypted, and this store has not opened it.
    """
    if user_id is not None:
        found = await find_session(store, user_id, session_id)
        if found is None:
            raise SessionNotFoundError(session_id)
        session_id = found.session_id
    session = check_session(await store.get(session_id))
    try:
        lines = await _written(store, session, write, history)
    except (CorruptRecordError, LookupError) as error:
        if await store.get(session_id) != session:
            raise SessionChangedError(session_id) from error  # what was read is not of one moment
        raise
    if await store.get(session_id) != session:
        raise SessionChangedError(session_id)
    lines.end()


async def _written(
    store: SessionStore, session: SessionRecord, write: Callable[[str], object], history: HistoryStore | None
) -> LineWriter:
    """Write everything of a session but the last line; return the writer."""
    places = await find_places(store, session)
    ends = await interrupt(store, session, places)
    lines = LineWriter(write)
    lines.begin(ends.session)
    async for text in blocks_of(store, places.order):
        lines.add("block", move_block(text, places.of))
    for text in ends.blocks:
        lines.add("block", text)
    async for turn in turns_of(store, session.session_id):
        lines.add("turn", record_line(ends.turns.get(turn.index) or move_turn(turn, places.of)))
    async for run in _runs_of(store, session.session_id):
        lines.add("run", record_line(ends.runs.get(run.run_id, run)))
    async for event in _events_of(store, session.session_id, history):
        lines.add("event", event_line(event))
    for event in ends.events:
        lines.add("event", event_line(event))
    return lines


async def import_session(
    store: SessionStore, lines: Iterable[str], *, session_id: str | None = None, now: float | None = None
) -> SessionRecord:
    """Store the session of an archive, and return its row. The session can be continued like any other.

    What is in it is checked as if it came from a caller, so what is imported can be opened, read, expanded, forked and
    run.

    It comes in page by page, under an epoch of its own, and holds one page at a time. While it does, the session is an
    ended one whose metadata is `{"turnwise.import": "unfinished"}`; one last commit makes it what it was. A call that
    fails or is cancelled deletes what has come in. A kill in between leaves the unfinished session: delete it and
    import again. All its events come into the store; one with a history store copies them there when it is opened.

    Args:
        lines: of the archive, each with or without its newline.
        session_id: the id it is to have; the one that it had if left out. With another, its runs have other ids too.
        now: seconds since the epoch: when it was last used, from which its `ttl_s` counts. As it was if left out.

    Raises:
        ArchiveError: a line cannot be taken in, or is missing; names it.
        SessionExistsError: the id is taken.
        DuplicateKeyError: one of its runs is in the store, in another session: pass a `session_id`.
    """
    read = read_lines(lines)
    first = next(read)
    named = first.value.get("session_id")
    session_id = named if session_id is None else session_id
    try:
        check_id("session id", session_id)
    except InvalidIdError as error:
        raise ArchiveError(first.number, str(error)) from error
    session = replace(first, value=first.value.get("session")).record(SessionRecord, session_id=session_id)
    check_session_line(first, session)
    if first.value.get(OWN_ID) is True:
        session = replace(session, session_id=own_id(session.user_id, session.session_id))
    if is_sealed(session.metadata):
        first.refuse("its metadata says that it is encrypted")
    incoming = Incoming(store, session if now is None else replace(session, updated_at=now), str(named))
    begun = asyncio.ensure_future(incoming.begin())
    try:
        await asyncio.shield(begun)
        line = first
        for line in read:
            await incoming.take(line)
        return public_record(await incoming.finish(line))
    except BaseException:
        await asyncio.wait([begun])  # cancelled meanwhile, it may be there
        await asyncio.shield(incoming.withdraw())
        raise


async def _runs_of(store: SessionStore, session_id: str) -> AsyncIterator[RunRecord]:
    after = -1
    while page := await store.runs(session_id, after=after, limit=PAGE):
        for run in page:
            yield run
        after = page[-1].turn_index


async def _events_of(store: SessionStore, session_id: str, history: HistoryStore | None) -> AsyncIterator[Event]:
    after = 0
    while True:
        page = check_events(await store.events(session_id, after=after, limit=PAGE))
        if history:  # asked last: what the store lets go of meanwhile is there
            merged = {event.seq: event for event in await history.events(session_id, after=after, limit=PAGE)}
            merged |= {event.seq: event for event in page}
            page = [merged[seq] for seq in sorted(merged)][:PAGE]
        if not page:
            return
        for event in page:
            yield event
        after = page[-1].seq
