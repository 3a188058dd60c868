"""Deletes expired sessions, after exporting each to a file if a folder is given."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

from turnwise.errors import (
    CorruptRecordError,
    SessionBusyError,
    SessionChangedError,
    SessionFencedError,
    SessionNotFoundError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.archive.file import ArchiveFile, part_of, updated_at
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord, SessionStatus
from turnwise.memory.event_store.base import HistoryStore, delete_sessions
from turnwise.memory.files.access import FileAccess
from turnwise.memory.stores.agents import agents_below
from turnwise.memory.stores.base import (
    Commit,
    Page,
    SessionStore,
    delete_unchanged,
    deletes_unchanged,
    end_unchanged,
)
from turnwise.memory.stores.reading import pages_by_cursor

PAGE = 500
"""How many sessions are read at once."""

TOGETHER = 100
"""How many sessions are deleted in one transaction at most."""

MOST_FAILED = 5
"""How many sessions in a row may fail, each in a transaction of its own, before no others are tried in this way."""

Forget = Callable[[Sequence[SessionRecord]], Awaitable[bool]]
"""Has memories forget sessions; returns whether all have. May be repeated."""

AT_ONCE = 16
"""How many sessions are deleted at once, each by itself."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """The result of a sweep: expired sessions, by outcome."""

    deleted: tuple[SessionKey, ...] = ()
    archived: tuple[SessionKey, ...] = ()
    """Deleted sessions that were exported to a file."""
    busy: tuple[SessionKey, ...] = ()
    """Kept, because they have an open run."""
    used: tuple[SessionKey, ...] = ()
    """Kept, because they were used during the sweep."""
    failed: Mapping[SessionKey, str] = field(default_factory=dict)
    """Kept, with the reason why they could not be exported or deleted."""
    cursor: str | None = None
    """Where to go on if the sweep had a `limit`; None after the last session."""

    def __add__(self, other: Swept) -> Swept:
        return Swept(
            deleted=self.deleted + other.deleted,
            archived=self.archived + other.archived,
            busy=self.busy + other.busy,
            used=self.used + other.used,
            failed={**self.failed, **other.failed},
            cursor=other.cursor,
        )


def not_deleted(key: SessionKey, error: TurnwiseError) -> Swept:
    """Return the outcome of a session that stays because of this error."""
    if isinstance(error, SessionBusyError):
        return Swept(busy=(key,))
    if isinstance(error, SessionChangedError | SessionFencedError):
        return Swept(used=(key,))
    if isinstance(error, SessionNotFoundError):
        return Swept()  # another process deleted it
    return Swept(failed={key: str(error)})


def damaged(page: Page[SessionRecord]) -> Swept:
    """Return the outcome of a page's expired sessions whose records cannot be read. They are not deleted."""
    reason = "its record cannot be read, so it was neither exported nor deleted: delete it, or restore it from a backup"
    return Swept(failed=dict.fromkeys(page.unreadable, reason))


async def sweep(
    store: SessionStore,
    now: float,
    archive: Path | None = None,
    history: HistoryStore | None = None,
    count: Callable[[int], None] = lambda _: None,
    *,
    files: FileAccess | None = None,
) -> Swept:
    """Delete the sessions that have expired by `now`, in seconds since the epoch; return the outcome of each.

    For a store that no running process uses; otherwise call `SessionManager.sweep`. A process that holds a swept
    session without using it notices the deletion at its next commit. May be repeated.

    Args:
        archive: a folder to which each session is exported first. The file is on disk before the session is deleted;
            its name has the session's id and its time of creation, in microseconds.
        history: the event store, if events are not in the session store.
        count: called after each page with the number of sessions so far.
        files: the files of the store, which go into the archives.

    Raises:
        StoreError: the store or the folder cannot be used. Sessions that were swept before stay swept.
    """
    done, number = Swept(), 0
    async for page in pages_by_cursor(partial(store.expired, now, limit=PAGE)):
        done += await sweep_sessions(store, [*page], archive, history, files=files)
        done += damaged(page)
        count(number := number + len(page))
    if files:
        await files.collect_later()
    return done


async def sweep_sessions(
    store: SessionStore,
    sessions: Sequence[SessionRecord],
    archive: Path | None,
    history: HistoryStore | None = None,
    *,
    files: FileAccess | None = None,
) -> Swept:
    """Delete a page of sessions, those that nobody uses in groups; see `sweep_session` for all others."""
    done, left = await sweep_unchanged(store, sessions, history, archive=archive, files=files)
    deleted = set(done.deleted)
    rest = [left.of(session) for session in sessions if session.key not in deleted]
    callers = [session for session in rest if not session.called_by]

    def one(session: SessionRecord) -> Awaitable[Swept]:
        return sweep_session(store, session, archive, history, files=files, exported=left.files.get(session.key))

    for start in range(0, len(callers), AT_ONCE):
        for swept in await asyncio.gather(*map(one, callers[start : start + AT_ONCE])):
            done += swept
    for agent in (session for session in rest if session.called_by):  # which its caller may have taken along
        done += await one(agent)
    return done


@dataclass(frozen=True)
class Left:
    """What groups have done to sessions that they did not delete."""

    sessions: dict[SessionKey, SessionRecord] = field(default_factory=dict)
    """Those that were ended and are again as they were, but for their epochs and revisions."""
    files: dict[SessionKey, ArchiveFile] = field(default_factory=dict)
    """The files of those that were exported and have lost nothing."""

    def of(self, session: SessionRecord) -> SessionRecord:
        """Return a session as it is if nobody else has used it since it was read."""
        return self.sessions.get(session.key, session)


async def sweep_unchanged(
    store: SessionStore,
    sessions: Sequence[SessionRecord],
    history: HistoryStore | None = None,
    forget: Forget | None = None,
    *,
    archive: Path | None = None,
    files: FileAccess | None = None,
) -> tuple[Swept, Left]:
    """Delete those of these sessions that nobody uses, many in a transaction, if the store can; return which.

    All files of a group are on disk before any of its sessions is deleted. A group that fails, such as one that takes
    too long, is tried again in halves. All other sessions are for `sweep_session`, or for their processes, which say
    why one stays.

    Args:
        forget: has memories forget the sessions, too.
        archive, files: see `sweep`.
    """
    swept, left = Swept(), Left()
    if not deletes_unchanged(store):
        return swept, left
    failed = 0
    groups = [sessions[start : start + TOGETHER] for start in range(0, len(sessions), TOGETHER)]
    while groups:
        group = list(map(left.of, groups.pop(0)))
        try:
            exported = await _archived_together(store, group, archive, history, files) if archive else None
            if exported is not None:
                group = [session for session in group if session.key in exported]
            if history or forget:
                deleted, emptied = await _delete_everywhere(store, group, history, forget, left)
            else:
                deleted, emptied = await delete_unchanged(store, group), ()
        except CorruptRecordError:
            continue  # of one of them, which must not keep the others
        except StoreError:
            middle = len(group) // 2
            if middle:
                groups[:0] = [group[:middle], group[middle:]]
            elif (failed := failed + 1) >= MOST_FAILED:
                break
            continue
        failed = 0
        swept += Swept(deleted=tuple(deleted), archived=tuple(deleted) if archive else ())
        gone = {*deleted, *emptied}
        left.files.update({key: file for key, file in (exported or {}).items() if key not in gone})
    return swept, left


async def _delete_everywhere(
    store: SessionStore,
    sessions: Sequence[SessionRecord],
    history: HistoryStore | None,
    forget: Forget | None,
    left: Left,
) -> tuple[Sequence[SessionKey], Collection[SessionKey]]:
    """Delete those of these sessions that nobody uses, also from memories and the event store.

    | awaited | what else may run | what a kill leaves |
    |---|---|---|
    | the sessions are ended | everything; one that is used first stays as it is | all of them ended, or none |
    | memories forget them | reads; who opens one finds it ended | ended sessions, which the next sweep deletes |
    | the event store deletes their events | the same | the same, without events |
    | the store deletes them | the same; one that was opened meanwhile stays, ended | all of them, or none |

    What fails is active again, as it was, unless somebody has opened it meanwhile.

    Returns which were deleted, and of which the event store has deleted the events.
    """
    before = {session.key: session for session in sessions}
    ended = {session.key: session for session in await end_unchanged(store, sessions)}
    deleted: Sequence[SessionKey] = ()
    emptied: Collection[SessionKey] = ()
    try:
        if forget is None or await forget(list(ended.values())):
            if history and ended:
                emptied = ended.keys()
                await delete_sessions(history, emptied)
            deleted = await delete_unchanged(store, list(ended.values()))
        return deleted, emptied
    finally:
        kept = ended.keys() - set(deleted)
        await asyncio.gather(*(_reopen(store, ended[key], before[key].status, left) for key in kept))


async def _reopen(store: SessionStore, ended: SessionRecord, status: SessionStatus, left: Left) -> None:
    """Give a session that this sweep has ended the status that it had. What fails is left to the next sweep."""
    session = ended
    if status != "ended":
        session = ended.committed(status=status)
        try:
            await store.commit(ended.key, ended.epoch, Commit(session=session))
        except TurnwiseError:
            return
    left.sessions[session.key] = session


async def sweep_session(
    store: SessionStore,
    session: SessionRecord,
    archive: Path | None,
    history: HistoryStore | None = None,
    *,
    files: FileAccess | None = None,
    exported: ArchiveFile | None = None,
) -> Swept:
    """Delete a session under a new epoch, so that it stays if another process opens it meanwhile.

    Its agents' sessions go first, leaves first, and its history before itself, so that a sweep that fails can be
    repeated: a deleted session expires no more.

    Args:
        exported: the file of this sweep that has the session, if it has one already.
    """
    key, file, is_whole, swept = session.key, exported, True, Swept()
    try:
        activation = await store.activate(key)
        if activation.open_runs:
            raise SessionBusyError(key.session_id, activation.open_runs[0].run_id)
        if (activation.session.log, activation.session.updated_at, activation.session.epoch) != (
            session.log,
            session.updated_at,
            session.epoch + 1,
        ):
            raise SessionChangedError(key.session_id)
        file = await archived(store, session, archive, history, files)
        for agent in await agents_below(store, key):
            swept += await _sweep_agent(store, agent, archive, history, files)
        if history:
            stored = await store.get(key)
            if (stored.log, stored.epoch) != (activation.session.log, activation.session.epoch):
                raise SessionFencedError(key.session_id, stored.epoch)
            is_whole = False
            await history.delete(key)
        await store.delete(key, epoch=activation.session.epoch, log=activation.session.log)
    except TurnwiseError as error:
        if isinstance(error, _REFUSALS) and file and is_whole:  # else only the file has its events
            await asyncio.to_thread(file.remove)
        return swept + not_deleted(key, error)
    return swept + Swept(deleted=(key,), archived=(key,) if file else ())


_REFUSALS = (SessionBusyError, SessionChangedError, SessionFencedError)
"""Errors of a session that stays because it is used."""


async def _sweep_agent(
    store: SessionStore,
    key: SessionKey,
    archive: Path | None,
    history: HistoryStore | None,
    files: FileAccess | None,
) -> Swept:
    """Delete the session of an agent, also from a process that has it: no run of its caller is open."""
    session = (await store.activate(key)).session
    file = await archived(store, session, archive, history, files)
    if history:
        await history.delete(key)
    await store.delete(key, epoch=session.epoch, log=session.log)
    return Swept(deleted=(key,), archived=(key,) if file else ())


async def archived(
    store: SessionStore,
    session: SessionRecord,
    folder: Path | None,
    history: HistoryStore | None = None,
    files: FileAccess | None = None,
) -> ArchiveFile | None:
    """Export a session to a folder, if one is given; return the file, which is on disk under its final name.

    A file from an earlier try is reused, unless the session was used since, because that try may have deleted events
    before it failed: the history goes before the session.

    Raises:
        SessionChangedError: the session was used since it was read.
        StoreError: the folder cannot be written to.
    """
    if folder is None:
        return None
    written = await _written(store, session, folder, history, files)
    return (await _put([written]))[0]


async def _archived_together(
    store: SessionStore,
    sessions: Sequence[SessionRecord],
    folder: Path,
    history: HistoryStore | None,
    files: FileAccess | None,
) -> dict[SessionKey, ArchiveFile]:
    """Do what `archived` does for sessions; return their files once all are on disk.

    Sessions of agents are left out, as they go with their callers, and so is what cannot be exported: who exports it
    alone learns why.
    """
    sessions = [session for session in sessions if not session.called_by]
    written: dict[SessionKey, tuple[Path, Path]] = {}

    async def write(session: SessionRecord) -> None:
        with suppress(TurnwiseError):
            written[session.key] = await _written(store, session, folder, history, files)

    try:
        for start in range(0, len(sessions), AT_ONCE):
            await asyncio.gather(*map(write, sessions[start : start + AT_ONCE]))
    except BaseException:
        _drop(written.values())
        raise
    return dict(zip(written, await _put([*written.values()]), strict=True))


async def _written(
    store: SessionStore,
    session: SessionRecord,
    folder: Path,
    history: HistoryStore | None,
    files: FileAccess | None,
) -> tuple[Path, Path]:
    """Export a session to a file that is on disk; return its name until now, and its final one. See `archived`."""
    from turnwise.memory.archive.export import export_session

    path = folder / _file_name(session)
    part = part_of(path)
    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        try:
            if await asyncio.to_thread(updated_at, path) == session.updated_at:
                await asyncio.to_thread(shutil.copyfile, path, part)
            with part.open("a", encoding="ascii", newline="\n") as file:
                if not file.tell():
                    await export_session(store, session.key, file.write, history=history, files=files)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            if (await store.get(session.key)).updated_at != session.updated_at:
                raise SessionChangedError(session.session_id)
        except BaseException:
            _drop([(part, path)])
            raise
    except OSError as error:
        raise StoreError(f"archive {path}: {error}; session {session.session_id!r} was not deleted") from error
    return part, path


async def _put(written: Sequence[tuple[Path, Path]]) -> list[ArchiveFile]:
    """Do what `ArchiveFile.put` does, or leave none of the files under its first name."""
    try:
        return await asyncio.to_thread(ArchiveFile.put, written)
    except OSError as error:
        raise StoreError(f"archive {written[0][1]}: {error}; no session was deleted") from error
    finally:
        _drop(written)


def _drop(written: Iterable[tuple[Path, Path]]) -> None:
    """Delete files that have not got their final names. Raises nothing: an error at hand says more."""
    for part, _ in written:
        with suppress(OSError):
            part.unlink(missing_ok=True)


_NAME = 120
"""The most characters of an id in a file's name, which has 255 bytes."""


def _file_name(session: SessionRecord) -> str:
    name = "@".join(quote(part, safe=" ").replace(".", "%2E") for part in session.key)
    if len(name) > _NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()
        name = f"{name[:_NAME]}-{digest[:32]}"
    return f"{name}@{round(session.created_at * 1e6)}.jsonl"
