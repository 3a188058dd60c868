"""Exports sessions to archives and imports them. An archive is lines of JSON with everything a store has of a session.

The first line has the version and the session's row. Blocks, turns, runs, events and deliveries follow, one on each
line, then files, each with its bytes on lines of their own. The last line has the number of lines and their checksum.
An archive is complete: for a fork it also has the blocks of other sessions that the fork uses, after its own. It has no
open runs: a run that is open at the export is stored as interrupted, with its output repaired and a terminal event. It
has no names of logs and no epochs, since each store makes its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace

from turnwise.errors import ArchiveError, CorruptRecordError, InvalidIdError, SessionChangedError
from turnwise.memory.archive.block_positions import (
    PAGE,
    blocks_of,
    find_positions,
    move_block,
    runs_of,
    turns_of,
)
from turnwise.memory.archive.files import write_files
from turnwise.memory.archive.format import LineWriter, delivery_line, event_line, move_event, read_lines, record_line
from turnwise.memory.archive.importer import SessionImport
from turnwise.memory.archive.unfinished_runs import interrupt
from turnwise.memory.archive.validation import check_session_line
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.sessions import Inherited, SessionKey, SessionRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.files.access import FileAccess
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.records import check_events, check_session, is_sealed
from turnwise.memory.stores.reading import SEQ, deliveries_of, merged_events, pages
from turnwise.memory.values.ids import check_id


async def export_session(
    store: SessionStore,
    key: SessionKey,
    write: Callable[[str], object],
    *,
    history: HistoryStore | None = None,
    files: FileAccess | None = None,
) -> None:
    """Export a session: call `write` for each line of the archive, newline included.

    Changes nothing. Has one page of records in memory at a time, and the output of open runs. If the call fails or is
    cancelled, the archive has no last line and cannot be imported.

    Args:
        history: the event store that has events of the session, beside those in the session store.
        files: the files of the store, whose bytes the archive gets.

    Raises:
        SessionNotFoundError: the user has no session of this id.
        SessionChangedError: the session was changed during the export.
        CorruptRecordError: a record of the session, or a file, cannot be read.
        FilesUnavailableError: the session has files, and `files` was not given.
        StillEncryptedError: the session is encrypted, and the store was opened without its keys.
    """
    session = check_session(await store.get(key))
    try:
        lines = await _write_all(store, session, write, history)
        await write_files(lines, store, key, files)
    except (CorruptRecordError, LookupError) as error:
        if await store.get(key) != session:
            raise SessionChangedError(key.session_id) from error  # the session changed while it was read
        raise
    if await store.get(key) != session:
        raise SessionChangedError(key.session_id)
    lines.end()


async def _write_all(
    store: SessionStore, session: SessionRecord, write: Callable[[str], object], history: HistoryStore | None
) -> LineWriter:
    """Write everything of a session but the last line; return the writer."""
    positions = await find_positions(store, session)
    ends = await interrupt(store, session, positions)
    lines = LineWriter(write)
    lines.begin(ends.session)
    async for text in blocks_of(store, positions.order):
        lines.add("block", move_block(text, positions.archived))
    for text in ends.blocks:
        lines.add("block", text)
    async for turn in turns_of(store, session.key):
        lines.add("turn", record_line(ends.turns.get(turn.index) or positions.archived_turn(turn)))
    async for run in runs_of(store, session.key):
        lines.add("run", record_line(ends.runs.get(run.run_id, run)))
    async for event in _events_of(store, session.key, history):
        lines.add("event", event_line(move_event(event, positions.archived, session.log)))
    for event in ends.events:
        lines.add("event", event_line(event))
    async for delivery in deliveries_of(store, session.key):
        if delivery.to_session is None:  # a copy of a message would be a second one
            lines.add("delivery", delivery_line(replace(delivery, namespace=None)))
    return lines


async def import_session(
    store: SessionStore,
    lines: Iterable[str],
    *,
    session_id: str | None = None,
    user_id: str | None = None,
    now: float | None = None,
    files: FileAccess | None = None,
) -> SessionRecord:
    """Import the session of an archive and return its row. The session can be continued like any other.

    Everything is checked as if it came from a caller, so the imported session can be opened, read, expanded, forked and
    run.

    The session is stored page by page, under an epoch of its own, with one page in memory at a time. Until the last
    commit it is an ended session with the metadata `{"turnwise.import": "unfinished"}`. If the call fails or is
    cancelled, it deletes what it has stored. A kill leaves the unfinished session: delete it and import again. All
    events go to the session store; if the session has an event store, they are copied there when it is opened.

    Args:
        lines: the lines of the archive, with or without newlines.
        session_id, user_id: the session's new id and user; if left out, it keeps those in the archive. With another id
            or user, its runs and deliveries get new ids, and a session of an agent becomes one that nobody has called.
        now: the new time of its last use, from which its `ttl_s` counts, in seconds since the epoch; if left out, it
            keeps the time in the archive.
        files: the files of the store, for those of the archive.

    Raises:
        ArchiveError: a line is wrong or missing; has the line's number.
        SessionExistsError: the user has a session of this id.
        DuplicateKeyError: the store has one of its runs in another session: pass a `session_id` or a `user_id`.
    """
    archive_lines = read_lines(lines)
    first = next(archive_lines)
    archived_id, owner = first.value.get("session_id"), first.value.get("user_id")
    key = SessionKey(archived_id if session_id is None else session_id, owner if user_id is None else user_id)
    try:
        check_id("session id", key.session_id)
        check_id("user id", key.user_id)
    except InvalidIdError as error:
        raise ArchiveError(first.number, str(error)) from error
    session = replace(first, value=first.value.get("session")).record(SessionRecord, **key._asdict())
    check_session_line(first, session)
    if is_sealed(session.metadata):
        first.refuse("its metadata says that it is encrypted")
    if key != (archived_id, owner):  # a copy of an agent's session is nobody's agent
        session = replace(session, called_by=None, inherited=Inherited())
    new = SessionImport(
        store,
        session if now is None else replace(session, updated_at=now),
        SessionKey(str(archived_id), str(owner)),
        files,
    )
    beginning = asyncio.ensure_future(new.begin())
    try:
        await asyncio.shield(beginning)
        line = first
        for line in archive_lines:
            await new.add(line)
        return await new.finish(line)
    except BaseException:  # a cancellation, too
        await asyncio.wait([beginning])  # it may still create the session
        await asyncio.shield(new.undo())
        if files:
            await asyncio.shield(files.collect_later())
        raise


async def _events_of(store: SessionStore, key: SessionKey, history: HistoryStore | None) -> AsyncIterator[Event]:
    async def read(after: int) -> Sequence[Event]:
        page = check_events(await store.events(key, after=after, limit=PAGE))
        if history:  # read last, since events move there from the store
            page = merged_events(await history.events(key, after=after, limit=PAGE), page, PAGE)
        return page

    async for page in pages(read, 0, SEQ):
        for event in page:
            yield event
