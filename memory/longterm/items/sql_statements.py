"""The SQL statements of `SQLItems`; the caller opens the transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ItemFilter, StoredItem
from turnwise.memory.longterm.items.rows import (
    AGENT,
    COLUMNS,
    ITEM,
    NOTHING,
    ROWS,
    Loaded,
    Pending,
    Revision,
    Row,
    item_of,
    key_of,
    values_of,
)
from turnwise.memory.longterm.items.rules import NO_END, TOMBSTONE_S, end_after_deletion, owner_after, owner_of
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.retention import Expiry, Use

_AT_ONCE = 500
"""The most values that a statement lists, since databases limit them."""

_MARKS = ", ".join("?" * (5 + len(COLUMNS)))
_INSERT = f"INSERT INTO turnwise_items (row, owner, digest, used, embedded, {ITEM}) VALUES ({_MARKS})"  # noqa: S608
_SET = ", ".join(f"{name} = ?" for name in COLUMNS)
_UPDATE = f"UPDATE turnwise_items SET used = ?, embedded = ?, {_SET} WHERE row = ?"  # noqa: S608
_TOMBSTONES = "INSERT OR IGNORE INTO turnwise_items_deleted (digest, at)"
_OWNED = "turnwise_items JOIN turnwise_item_owners USING (owner)"


class DeletedRow(NamedTuple):
    """The values of a row that a deletion needs. No other is read, so that damaged rows can be deleted."""

    row: int
    digest: bytes
    id: Any
    superseded_at: Any
    superseded_by: Any
    embedded: Any
    text: Any
    """None if the row has no vectors."""


_DELETED_COLUMNS = (
    "row, digest, id, superseded_at, superseded_by, embedded, "
    "CASE WHEN embedded IS NULL THEN NULL ELSE text END AS text"
)


class Statements:
    """Reads and writes the items of a space through the driver's own cursor, which is faster than SQLAlchemy.

    Args:
        cursor: takes SQLite's statements; see `PostgresCursor`.
    """

    def __init__(self, cursor: Any, space: str) -> None:
        self._cursor = cursor
        self._space = space

    def digest(self, user_id: str, id: str) -> bytes:
        """Return the digest of an item's space, user and id."""
        parts = f"{len(self._space)}:{self._space}{len(user_id)}:{user_id}{id}"
        return blake2b(parts.encode(errors="surrogatepass"), digest_size=16).digest()

    # Reading

    def revision(self, user_id: str) -> Revision:
        """Return the revision of a user's rows."""
        select = "SELECT owner, changes, added FROM turnwise_item_owners WHERE space = ? AND user_id = ?"
        rows = self._all(select, self._space, user_id)
        return Revision(*rows[0]) if rows else NOTHING

    def load(self, user_id: str, known_revision: Revision, expiry: Expiry | None, most: int | None) -> Loaded:
        """Return a user's rows that are not in the known revision: see `SQLItems.load`."""
        revision = current = self.revision(user_id)
        if not revision.grew_from(known_revision):
            most = most if known_revision == NOTHING else None
            known_revision = NOTHING
        first, _ = _range(revision.owner)
        rows: list[Row] = []
        if revision.rows != known_revision.rows:
            # In PostgreSQL, rows that came after the revision was read may be seen by now.
            numbers = first + known_revision.rows, first + revision.rows - 1
            limit = f" LIMIT {most:d}" if most else ""
            select = f"SELECT row, {ITEM} FROM turnwise_items WHERE row BETWEEN ? AND ? ORDER BY row{limit}"  # noqa: S608
            rows = [_row(user_id, values) for values in self._all(select, *numbers)]
            if len(rows) == most:
                revision = revision._replace(rows=rows[-1].row - first + 1)
        expired = self._expired(user_id, revision.owner, expiry) if expiry else []
        return Loaded(revision=revision, base=known_revision, more=rows, expired=expired, is_all=revision == current)

    def _expired(self, user_id: str, owner: int, expiry: Expiry) -> list[int]:
        which = f"row BETWEEN ? AND ? AND used < ? AND {_types(expiry.types)}"
        select = f"SELECT row, id FROM turnwise_items WHERE {which}"  # noqa: S608
        rows = self._all(select, *_range(owner), expiry.before, *expiry.types)
        used = expiry.used.get(user_id, ())
        return [row for row, name in rows if name not in used]

    def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        """Return the items of these ids that the scope sees."""
        names = {self.digest(scope.user_id, name): name for name in ids}
        items = {}
        for digests in _chunks([*names]):
            which = f"digest IN ({_marks(digests)}) AND {_VISIBLE}"
            select = f"SELECT digest, {ITEM} FROM turnwise_items WHERE {which}"  # noqa: S608
            for digest, *values in self._all(select, *digests, scope.agent):
                items[names[bytes(digest)]] = item_of(scope.user_id, values)
        return {name: items[name] for name in ids if name in items}

    def query(
        self, scope: Scope, which: ItemFilter, before: tuple[float, int] | None, limit: int
    ) -> list[tuple[int, MemoryItem]]:
        """Return the newest items before a time and a row, each with its row among its user's."""
        owner = self.revision(scope.user_id).owner
        condition, values = _matching(which)
        place = "" if before is None else "(created_at, row) < (?, ?) AND "
        after = () if before is None else (before[0], before[1] + owner * ROWS)
        select = (
            f"SELECT row, {ITEM} FROM turnwise_items WHERE owner = ? AND {place}{_VISIBLE}{condition} "  # noqa: S608
            "ORDER BY created_at DESC, row DESC LIMIT ?"
        )
        rows = self._all(select, owner, *after, scope.agent, *values, limit)
        return [(row - owner * ROWS, item_of(scope.user_id, values)) for row, *values in rows]

    def scan(self, user_id: str | None, after: int, limit: int) -> list[tuple[int, StoredItem]]:
        """Return the items of a user, or of all users, after a row, in the order of their rows."""
        if user_id is None:
            of_space = f"SELECT user_id, row, {ITEM} FROM {_OWNED} WHERE space = ? AND row > ?"  # noqa: S608
            rows = self._all(f"{of_space} ORDER BY row LIMIT ?", self._space, after, limit)
        else:
            first, last = _range(self.revision(user_id).owner)
            of_user = f"SELECT row, {ITEM} FROM turnwise_items WHERE row BETWEEN ? AND ?"  # noqa: S608
            numbers = max(first, after + 1), last
            rows = [(user_id, *values) for values in self._all(f"{of_user} ORDER BY row LIMIT ?", *numbers, limit)]
        return [(row, StoredItem(user, values[AGENT], item_of(user, values))) for user, row, *values in rows]

    # Writing

    def add(
        self, scope: Scope, items: Sequence[MemoryItem], used: float, *, with_vectors: bool = False
    ) -> list[MemoryItem]:
        """Insert the items that the user neither has nor had; return them."""
        new: dict[bytes, MemoryItem] = {}
        for item in items:
            new.setdefault(self.digest(scope.user_id, item.id), item)
        for digests in _chunks([*new]):
            marks = _marks(digests)
            select = (
                f"SELECT digest FROM turnwise_items WHERE digest IN ({marks}) "  # noqa: S608
                f"UNION ALL SELECT digest FROM turnwise_items_deleted WHERE digest IN ({marks})"
            )
            for (digest,) in self._all(select, *digests, *digests):
                new.pop(bytes(digest), None)
        if not new:
            return []
        # No upsert, since in PostgreSQL that would take a new number of an owner each time.
        update = "UPDATE turnwise_item_owners SET added = added + ? WHERE space = ? AND user_id = ?"
        insert = "INSERT INTO turnwise_item_owners (added, space, user_id, changes) VALUES (?, ?, ?, 0)"
        counted = len(new), self._space, scope.user_id
        returning = " RETURNING owner, added"
        ((owner, added),) = self._all(update + returning, *counted) or self._all(insert + returning, *counted)
        embedded = "" if with_vectors else None
        rows = [
            (row, owner, digest, used, embedded, *values_of(item, owner_of(scope, item.type)))
            for row, (digest, item) in enumerate(new.items(), owner * ROWS + added - len(new))
        ]
        self._cursor.executemany(_INSERT, rows)
        if with_vectors:
            self._undrop(key_of(scope.user_id, item.id, item.text) for item in new.values())
        return [*new.values()]

    def change(
        self,
        scope: Scope,
        id: str,
        replacement: Callable[[MemoryItem | None], MemoryItem | None],
        at: float | None,
        successor: MemoryItem | None,
    ) -> MemoryItem | None:
        """Carry out `ItemStore.change`; `replacement` returns None if nothing is to be written."""
        digest, now = self.digest(scope.user_id, id), time.time()
        rows = self._all(f"SELECT row, used, embedded, {ITEM} FROM turnwise_items WHERE digest = ?", digest)  # noqa: S608
        row, used, embedded, *values = rows[0] if rows else (None, 0.0, None)
        if rows and values[AGENT] not in (None, scope.agent):
            return None
        old = item_of(scope.user_id, values) if rows else None
        new = replacement(old)
        if new is None or (successor is not None and self._was_deleted(self.digest(scope.user_id, successor.id))):
            return old
        if old is None:
            self._cursor.execute("DELETE FROM turnwise_items_deleted WHERE digest = ?", (digest,))
            self.add(scope, [new], now)
        else:
            if embedded is not None and new.text != old.text:
                embedded = ""
                self._drop([key_of(scope.user_id, id, old.text)])
                self._undrop([key_of(scope.user_id, id, new.text)])
            agent = owner_after(scope, values[AGENT], old.type, new.type)
            last_use = used if at is None else max(used, at)
            self._cursor.execute(_UPDATE, (last_use, embedded, *values_of(new, agent), row))
            self._bump(scope.user_id)
        if successor is not None:
            self.add(scope, [successor], now, with_vectors=embedded is not None)
        return new

    def touch(self, use: Use) -> None:
        """Record the time of a use of a user's items, unless they were used later."""
        counts = ", uses = uses + 1" if use.counts else ""
        update = f"UPDATE turnwise_items SET used = ?{counts} WHERE digest = ? AND used < ?"  # noqa: S608
        digests = {self.digest(use.user_id, name) for name in use.ids}
        self._cursor.executemany(update, [(use.at, digest, use.at) for digest in digests])

    # Deleting

    def delete(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """Delete the items of these ids that the scope sees, and record the ids that the user does not have."""
        names = {self.digest(scope.user_id, name): name for name in ids}
        agents: dict[bytes, Any] = {}
        for digests in _chunks([*names]):
            select = f"SELECT digest, agent FROM turnwise_items WHERE digest IN ({_marks(digests)})"  # noqa: S608
            agents |= {bytes(digest): agent for digest, agent in self._all(select, *digests)}
        seen = [digest for digest in names if agents.get(digest, _MISSING) in (None, scope.agent)]
        taken = [row for part in _chunks(seen) for row in self._take(f"digest IN ({_marks(part)})", *part)]
        ids_by_digest = {row.digest: row._replace(id=names[row.digest]) for row in taken}
        missing = {digest: name for digest, name in names.items() if digest not in agents}
        self._forget({scope.user_id: [*ids_by_digest.values()]}, {scope.user_id: missing})
        return [names[digest] for digest in seen]

    def owners(self, users: Collection[str]) -> dict[int, str]:
        """Return those of these users who have anything, by their numbers."""
        found: dict[int, str] = {}
        for part in _chunks([*users]):
            which = f"space = ? AND user_id IN ({_marks(part)})"
            found |= self._all(f"SELECT owner, user_id FROM turnwise_item_owners WHERE {which}", self._space, *part)  # noqa: S608
        return found

    def delete_sessions(self, places: Collection[tuple[int, str]], owners: Mapping[int, str]) -> dict[str, list[str]]:
        """Delete the rows of sessions; return their ids by user.

        Args:
            places: the numbers of the sessions' users, and the names of the sessions.
            owners: the users, by their numbers.
        """
        rows: dict[str, list[DeletedRow]] = {}
        for part in _chunks([*places]):
            numbers = dict.fromkeys(owner for owner, _ in part)  # an index has these; it has no names of sessions
            pairs = ", ".join(["(?, ?)"] * len(part))
            which = f"owner IN ({_marks(numbers)}) AND (owner, session_id) IN (VALUES {pairs})"
            for row in self._take(which, *numbers, *chain(*part)):
                rows.setdefault(owners[row.row // ROWS], []).append(row)
        self._forget(rows)
        return {user_id: list(map(_id_of, of_user)) for user_id, of_user in rows.items()}

    def numbers(self, scope: Scope, turn_index: int | None) -> list[int]:
        """Return the numbers of the rows of the scope's session or user."""
        which = ItemFilter(session_id=scope.session_id, turn_index=turn_index, superseded=True)
        condition, values = _matching(which)
        select = f"SELECT row FROM turnwise_items WHERE row BETWEEN ? AND ?{condition} ORDER BY row"  # noqa: S608
        return [row for (row,) in self._all(select, *_range(self.revision(scope.user_id).owner), *values)]

    def delete_rows(self, user_id: str, numbers: Sequence[int], unused_since: float | None = None) -> list[str]:
        """Delete those rows of a user that still exist and were not used since a time; return their ids.

        Of a row whose id cannot be read, the digest is returned.
        """
        rows: list[DeletedRow] = []
        for batch in _chunks(numbers):
            unused, values = ("", ()) if unused_since is None else (" AND used < ?", (unused_since,))
            rows += self._take(f"row IN ({_marks(batch)}){unused}", *batch, *values)
        self._forget({user_id: rows})
        return list(map(_id_of, rows))

    def unused(self, before: float, types: Collection[MemoryType] | None, limit: int) -> dict[str, list[int]]:
        """Return the numbers of rows of these types that were last used before a time, the longest unused first."""
        condition, values = _matching(ItemFilter(types=types, superseded=True))
        which = f"space = ? AND used < ?{condition} ORDER BY used, row LIMIT ?"
        select = f"SELECT user_id, row FROM {_OWNED} WHERE {which}"  # noqa: S608
        numbers: dict[str, list[int]] = {}
        for user_id, row in self._all(select, self._space, before, *values, limit):
            numbers.setdefault(user_id, []).append(row)
        return numbers

    def _take(self, which: str, *values: Any) -> list[DeletedRow]:
        """Delete the rows that match; return them, in the order of their numbers. `_forget` does what is left to do."""
        delete = f"DELETE FROM turnwise_items WHERE {which} RETURNING {_DELETED_COLUMNS}"  # noqa: S608
        return sorted((_deleted_row(row) for row in self._all(delete, *values)), key=lambda row: row.row)

    def _forget(
        self, rows: Mapping[str, Sequence[DeletedRow]], missing: Mapping[str, Mapping[bytes, str]] | None = None
    ) -> None:
        """Record the ids of deleted rows of users, as well as `missing`, which the users do not have.

        An item that a deleted row superseded becomes valid again, or is superseded by the deleted row's successor. If
        a user has no row left, the user's number and id are deleted, too.
        """
        missing = missing or {}
        deleted = [row for of_user in rows.values() for row in of_user]
        if digests := [*(row.digest for row in deleted), *(digest for names in missing.values() for digest in names)]:
            now = time.time()
            for part in _chunks(digests):
                gone = f"WITH gone (digest) AS (VALUES {', '.join(['(?)'] * len(part))})"
                self._cursor.execute(f"{_TOMBSTONES} {gone} SELECT digest, ? FROM gone", (*part, now))  # noqa: S608
            self._cursor.execute("DELETE FROM turnwise_items_deleted WHERE at < ?", (now - TOMBSTONE_S,))
        self._drop(
            [
                key_of(user_id, row.id, row.text)
                for user_id, of_user in rows.items()
                for row in of_user
                if isinstance(row.id, str) and isinstance(row.text, str)
            ]
        )
        changed = {of_user[0].row // ROWS: user_id for user_id, of_user in rows.items() if of_user}
        others = self.owners([user_id for user_id in missing if not rows.get(user_id)])
        owners = changed | others
        for numbers in _chunks([*owners]):
            ends = {owner: dict.fromkeys(missing.get(owners[owner], {}).values(), NO_END) for owner in numbers}
            for owner in numbers:
                named = (row for row in rows.get(owners[owner], ()) if isinstance(row.id, str))
                ends[owner] |= {row.id: (row.superseded_at, row.superseded_by) for row in named}
            self._end_deletion(ends, changed.keys() & ends.keys())

    def _end_deletion(self, ends: Mapping[int, Mapping[str, Any]], changed: set[int]) -> None:
        """Forget users without rows; of all others, let items that deleted ones superseded take over their ends.

        Args:
            ends: by the number of each user, what ended each of the deleted items.
            changed: the numbers of the users who had a row that was deleted.
        """
        which = f"owner IN ({_marks(ends)}) AND {_WITHOUT_ROWS} RETURNING owner"
        gone = {owner for (owner,) in self._all(f"DELETE FROM turnwise_item_owners WHERE {which}", *ends)}  # noqa: S608
        if not (left := ends.keys() - gone):
            return
        changed = changed - gone
        for ids in _chunks([*dict.fromkeys(name for owner in left for name in ends[owner])]):
            which = f"superseded_by IN ({_marks(ids)}) AND owner IN ({_marks(left)})"
            select = f"SELECT row, owner, id, superseded_by FROM turnwise_items WHERE {which}"  # noqa: S608
            for row, owner, name, successor in self._all(select, *ids, *left):
                if successor in ends[owner]:
                    changed.add(owner)
                    update = "UPDATE turnwise_items SET superseded_at = ?, superseded_by = ? WHERE row = ?"
                    self._cursor.execute(update, (*end_after_deletion(ends[owner], name, successor), row))
        if changed:
            which = f"owner IN ({_marks(changed)})"
            self._cursor.execute(f"UPDATE turnwise_item_owners SET changes = changes + 1 WHERE {which}", (*changed,))  # noqa: S608

    def _was_deleted(self, digest: bytes) -> bool:
        return bool(self._all("SELECT 1 FROM turnwise_items_deleted WHERE digest = ?", digest))

    def _bump(self, user_id: str) -> None:
        update = "UPDATE turnwise_item_owners SET changes = changes + 1 WHERE space = ? AND user_id = ?"
        self._cursor.execute(update, (self._space, user_id))

    # Vectors are kept elsewhere: which are missing there, and which are of no item any more

    def pending(self, embedding: str, limit: int) -> list[Pending]:
        """Return items whose text has no vectors of this embedding."""
        select = f"SELECT user_id, id, text FROM {_OWNED} WHERE space = ? AND {_WITHOUT_VECTOR} LIMIT ?"  # noqa: S608
        rows = self._all(select, self._space, embedding, embedding, limit)
        return [
            Pending(user_id=user_id, id=name, text=text)
            for user_id, name, text in rows
            if all(isinstance(value, str) for value in (user_id, name, text))
        ]

    def lacking(self, embedding: str) -> int:
        """Return how many items have no vectors of this embedding."""
        select = f"SELECT count(*) FROM {_OWNED} WHERE space = ? AND {_WITHOUT_VECTOR}"  # noqa: S608
        return int(self._all(select, self._space, embedding, embedding)[0][0])

    def mark(self, items: Sequence[Pending], embedding: str) -> None:
        """Record that these items have vectors of this embedding. The vector of a changed text counts as dropped."""
        for item in items:
            update = "UPDATE turnwise_items SET embedded = ? WHERE digest = ? AND text = ?"
            self._cursor.execute(update, (embedding, self.digest(item.user_id, item.id), item.text))
            if not self._cursor.rowcount:
                self._drop([item.key])

    def unmark(self) -> None:
        """Record that no item has a vector."""
        of_space = "owner IN (SELECT owner FROM turnwise_item_owners WHERE space = ?)"
        self._cursor.execute(f"UPDATE turnwise_items SET embedded = '' WHERE {of_space}", (self._space,))  # noqa: S608

    def embedded(self) -> Iterator[tuple[str, Pending]]:
        """Yield each item with the embedding of its vectors, the latest first."""
        select = f"SELECT embedded, user_id, id, text FROM {_OWNED} WHERE space = ? ORDER BY row DESC"  # noqa: S608
        for embedded, user_id, name, text in self._all(select, self._space):
            if all(isinstance(value, str) for value in (user_id, name, text)):
                yield embedded, Pending(user_id=user_id, id=name, text=text)

    def dropped(self, limit: int | None) -> list[str]:
        """Return keys of vectors whose items were deleted or changed."""
        select = "SELECT key FROM turnwise_vectors_dropped WHERE space = ?"
        return [key for (key,) in self._all(select + ("" if limit is None else f" LIMIT {limit:d}"), self._space)]

    def undrop(self, keys: Sequence[str]) -> None:
        """Record that these vectors are deleted."""
        self._undrop(keys)

    def _drop(self, keys: Sequence[str]) -> None:
        insert = "INSERT OR IGNORE INTO turnwise_vectors_dropped (space, key) VALUES (?, ?)"
        self._cursor.executemany(insert, [(self._space, key) for key in keys])

    def _undrop(self, keys: Iterator[str] | Sequence[str]) -> None:
        delete = "DELETE FROM turnwise_vectors_dropped WHERE space = ? AND key = ?"
        self._cursor.executemany(delete, [(self._space, key) for key in keys])

    def count(self) -> int:
        """Return how many items there are, of all users."""
        return int(self._all(f"SELECT count(*) FROM {_OWNED} WHERE space = ?", self._space)[0][0])  # noqa: S608

    def _all(self, statement: str, *values: Any) -> list[Any]:
        self._cursor.execute(statement, values)
        rows: list[Any] = self._cursor.fetchall()
        return rows


_VISIBLE = "(agent IS NULL OR agent = ?)"
"""Whether a scope sees a row. A comparison of an agent with NULL is never true."""

_MISSING = object()
"""Is no agent."""

_WITHOUT_ROWS = "NOT EXISTS (SELECT 1 FROM turnwise_items WHERE turnwise_items.owner = turnwise_item_owners.owner)"
"""Whether an owner has no row."""

_WITHOUT_VECTOR = "(embedded < ? OR embedded > ?)"
"""Whether a row needs vectors of an embedding and has none. Two comparisons, since `!=` does not use the index."""


def _row(user_id: str, values: Sequence[Any]) -> Row:
    number, *values = values
    item = item_of(user_id, values)
    return Row(row=number, agent=values[AGENT], item=item, key=key_of(user_id, item.id, item.text))


def _deleted_row(values: Sequence[Any]) -> DeletedRow:
    row, digest, *rest = values
    return DeletedRow(row, bytes(digest), *rest)


def _id_of(row: DeletedRow) -> str:
    return row.id if isinstance(row.id, str) else row.digest.hex()


def _range(owner: int) -> tuple[int, int]:
    return owner * ROWS, (owner + 1) * ROWS - 1


def _types(types: Collection[MemoryType]) -> str:
    return f"type IN ({_marks(types)})" if types else "1 = 0"


def _marks(values: Collection[Any]) -> str:
    return ", ".join("?" * len(values))


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), _AT_ONCE):
        yield values[first : first + _AT_ONCE]


def _matching(which: ItemFilter) -> tuple[str, list[Any]]:
    """Return the conditions of a filter, each with AND before it, and their values."""
    conditions: list[str] = []
    values: list[Any] = []

    def need(condition: str, *parameters: Any) -> None:
        conditions.append(f" AND {condition}")
        values.extend(parameters)

    if which.types is not None:
        need(_types(which.types), *(str(kind) for kind in which.types))
    if which.session_id is not None:
        need("session_id = ?", which.session_id)
    if which.turn_index is not None:
        need("turn_index = ?", which.turn_index)
    if which.used_since is not None:
        need("used >= ?", which.used_since)
    if which.as_of is not None:
        need("created_at <= ?", which.as_of)
    if not which.superseded and which.as_of is None:
        need("superseded_at IS NULL")
    elif not which.superseded:
        need("(superseded_at IS NULL OR superseded_at > ?)", which.as_of)
    if which.live_at is not None:
        need("(expires_at IS NULL OR expires_at > ?)", which.live_at)
        if which.as_of is None:
            need("status = 'active'")
    return "".join(conditions), values
