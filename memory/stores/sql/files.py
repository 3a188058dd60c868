"""`FileTables`: the records of files in an SQL database. Call what writes under the store's lock, but for objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from turnwise.errors import FileExpiredError
from turnwise.memory.conversation.codec import decoded
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.stores.sql.schema import file_objects, files
from turnwise.memory.values.records import record_of, replace

_FIELDS = [field.name for field in fields(FileRecord)]
_COUNT, _SUM = sa.func.count, sa.func.sum


class FileTables:
    """Files, and the objects with their bytes: see `FileIndex`. Each method works in the caller's transaction."""

    def reserve(self, connection: sa.Connection, object_id: str, user_id: str, now: float) -> None:
        """See `FileIndex.reserve_object`."""
        row = {"object_id": object_id, "user_id": user_id, "size": 0, "uses": 0, "reserved_at": now}
        connection.execute(sa.insert(file_objects).values(**row))

    def release(self, connection: sa.Connection, object_id: str) -> None:
        """See `FileIndex.release_object`."""
        own = (file_objects.c.object_id == object_id) & (file_objects.c.uses == 0)
        connection.execute(sa.update(file_objects).where(own).values(reserved_at=None))

    def add(self, connection: sa.Connection, file: FileRecord, limits: FileLimits) -> FileRecord:
        """See `FileIndex.add_file`; the session was checked."""
        if existing := self.get(connection, file.key, file.file_id):
            if existing.object_id != file.object_id:
                self.release(connection, file.object_id)
            return existing
        columns = file_objects.c
        used = (columns.user_id == file.user_id) & (columns.uses > 0)
        object_id = connection.scalar(sa.select(columns.object_id).where(used, columns.digest == file.digest))
        count, session_bytes = connection.execute(
            sa.select(_COUNT(), _SUM(files.c.size)).where(*_of(file.key)).select_from(files)
        ).one()
        user_bytes = int(connection.scalar(sa.select(_SUM(columns.size)).where(used)) or 0)
        limits.check_count(
            file.name, count + 1, int(session_bytes or 0) + file.size, user_bytes + (0 if object_id else file.size)
        )
        if object_id is None:
            object_id = file.object_id
            own = (columns.object_id == object_id) & (columns.uses == 0) & columns.reserved_at.is_not(None)
            values = {"reserved_at": None, "digest": file.digest, "size": file.size, "uses": 1}
            if not connection.execute(sa.update(file_objects).where(own).values(**values)).rowcount:
                raise FileExpiredError(file.file_id)
        else:
            if object_id != file.object_id:
                self.release(connection, file.object_id)
            connection.execute(
                sa.update(file_objects).where(columns.object_id == object_id).values(uses=columns.uses + 1)
            )
        added = replace(file, object_id=object_id)
        connection.execute(sa.insert(files).values(**vars(added)))
        return added

    def get(self, connection: sa.Connection, key: SessionKey, file_id: str) -> FileRecord | None:
        """See `FileIndex.file`."""
        row = connection.execute(sa.select(files).where(*_of(key), files.c.file_id == file_id)).one_or_none()
        return _read(row) if row else None

    def page(self, connection: sa.Connection, key: SessionKey, after: str, limit: int) -> list[FileRecord]:
        """See `FileIndex.files`."""
        rows = sa.select(files).where(*_of(key), files.c.file_id > after).order_by(files.c.file_id).limit(limit)
        return [_read(row) for row in connection.execute(rows)]

    def copy(self, connection: sa.Connection, source: SessionKey, fork: SessionKey) -> None:
        """Give a fork the files of the session that it was forked from."""
        columns = [sa.literal(fork.session_id) if name == "session_id" else files.c[name] for name in _FIELDS]
        copies = sa.select(*columns).where(*_of(source))
        if connection.execute(sa.insert(files).from_select(_FIELDS, copies)).rowcount:
            self._count(connection, _of(fork), 1)

    def delete(self, connection: sa.Connection, own: sa.ColumnElement[bool], *, session_id: str | None = None) -> int:
        """Delete files, of one session if it is named; return how many there were."""
        where = [own] if session_id is None else [own, files.c.session_id == session_id]
        if not connection.scalar(sa.select(_COUNT()).select_from(files).where(*where)):
            return 0
        self._count(connection, where, -1)
        return connection.execute(sa.delete(files).where(*where)).rowcount

    def _count(self, connection: sa.Connection, where: Sequence[sa.ColumnElement[bool]], sign: int) -> None:
        """Add to the uses of objects, or subtract from them, how many of these files have each."""
        uses = sa.select(files.c.object_id, _COUNT().label("uses")).where(*where).group_by(files.c.object_id).subquery()
        of_object = sa.select(uses.c.uses).where(uses.c.object_id == file_objects.c.object_id).scalar_subquery()
        connection.execute(
            sa.update(file_objects)
            .where(file_objects.c.object_id.in_(sa.select(uses.c.object_id)))
            .values(uses=file_objects.c.uses + sign * of_object)
        )

    def has_late(self, connection: sa.Connection, reserved_before: float) -> bool:
        """Return whether there is something for `expire`."""
        late = sa.select(file_objects.c.object_id).where(*_late(reserved_before)).limit(1)
        return connection.scalar(late) is not None

    def expire(self, connection: sa.Connection, reserved_before: float) -> None:
        """Make objects unused that were reserved before a time."""
        connection.execute(sa.update(file_objects).where(*_late(reserved_before)).values(reserved_at=None))

    def unused(self, connection: sa.Connection, limit: int) -> list[str]:
        """See `FileIndex.unused_objects`."""
        columns = file_objects.c
        unused = sa.select(columns.object_id).where(columns.uses == 0, columns.reserved_at.is_(None))
        return [*connection.scalars(unused.order_by(columns.object_id).limit(limit))]

    def drop(self, connection: sa.Connection, object_ids: Sequence[str]) -> None:
        """See `FileIndex.drop_objects`."""
        columns = file_objects.c
        unused = (columns.uses == 0) & columns.reserved_at.is_(None)
        connection.execute(sa.delete(file_objects).where(unused, columns.object_id.in_(object_ids)))


def _of(key: SessionKey) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return files.c.user_id == key.user_id, files.c.session_id == key.session_id


def _late(reserved_before: float) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return file_objects.c.uses == 0, file_objects.c.reserved_at < reserved_before


def _read(row: sa.Row[Any]) -> FileRecord:
    return decoded(f"file {row.file_id}", lambda: record_of(FileRecord, row._asdict()))
