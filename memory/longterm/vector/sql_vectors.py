"""`SQLVectors`: vectors under keys in a table of PostgreSQL, with the verbs of `VectorCollection`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import sqlalchemy as sa

from turnwise.memory.longterm.vector.collection import PAGE, Health, check_dimensions
from turnwise.memory.stores.sql.database import Schema, SQLDatabase, insert_into

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

Result = TypeVar("Result")

tables = sa.MetaData()

SCHEMA = Schema(name="vectors_version", version=1, tables=tables)

vectors = sa.Table(
    "turnwise_vectors",
    tables,
    sa.Column("collection", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("item", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Index("turnwise_vectors_item", "item"),
)


class SQLVectors(SQLDatabase):
    """Vectors under keys. Each verb is one transaction, blocks its thread, and may be repeated.

    The table has no text and no name of a user: `user_id` is hashed. Several processes may use it at once.

    Args:
        url: `postgresql://user:password@host/name`.
        name: what the names of its collections begin with.
        embedding: the name of the embedding function, with its settings: each has a collection of its own.

    Raises:
        StoreError: by each verb: the database cannot be reached, read or written.
    """

    def __init__(self, url: str, name: str, embedding: str) -> None:
        super().__init__(url, SCHEMA, lock_timeout_s=30.0, connections=4)
        self._prefix = f"{name}-"
        self._embedding = embedding
        self._collection = f"{name}-{blake2b(embedding.encode(), digest_size=8).hexdigest()}"
        self.dimensions: int | None = None
        """Of the vectors that are kept; None while there are none, or it was not used yet."""

    def add(self, keys: Sequence[str], users: Sequence[str], given: Vectors, items: Sequence[str]) -> None:
        """See `VectorCollection.add`."""
        rows = [
            {
                "collection": self._collection,
                "key": key,
                "item": item,
                "user_id": blake2b(user.encode(errors="surrogatepass"), digest_size=16).hexdigest(),
                "vector": np.asarray(vector, dtype="<f4").tobytes(),
            }
            for key, user, vector, item in sorted(zip(keys, users, given, items, strict=True), key=lambda row: row[0])
        ]

        def work(connection: sa.Connection) -> int | None:
            some = sa.select(sa.func.length(vectors.c.vector)).where(vectors.c.collection == self._collection).limit(1)
            size = connection.scalar(some)
            dimensions = None if size is None else size // 4
            if dimensions in (None, given.shape[1]):
                insert = insert_into(vectors, connection.dialect)
                replaced = {"vector": insert.excluded.vector, "item": insert.excluded.item}
                statement = insert.on_conflict_do_update(index_elements=["collection", "key"], set_=replaced)
                connection.execute(statement, rows)
            return dimensions

        self.dimensions = self._do(work)
        check_dimensions(self.dimensions, given, self._embedding)
        self.dimensions = given.shape[1]

    def get(self, keys: Sequence[str]) -> dict[str, Vectors]:
        """See `VectorCollection.get`."""

        def work(connection: sa.Connection) -> dict[str, Vectors]:
            found: dict[str, Vectors] = {}
            for start in range(0, len(keys), PAGE):
                some = vectors.c.key.in_(list(keys[start : start + PAGE]))
                select = sa.select(vectors.c.key, vectors.c.vector).where(self._own, some)
                found |= {key: np.frombuffer(vector, dtype="<f4") for key, vector in connection.execute(select)}
            return found

        return self._do(work)

    def delete(self, keys: Sequence[str]) -> None:
        """See `VectorCollection.delete`. PostgreSQL overwrites deleted vectors later, when it vacuums."""
        of_keys = sa.or_(vectors.c.key.in_(list(keys)), vectors.c.item.in_(list(keys)))
        self._do(lambda connection: connection.execute(sa.delete(vectors).where(self._named, of_keys)).rowcount)

    def push(self, changes: int) -> None:
        """Do nothing: there are no files of an index."""

    def overwrite(self, keys: Collection[str]) -> int:
        """Return how many of these keys are there still: the server's files are its own."""
        return len(self.get(list(keys)))

    def search(self, user: str, vector: Vectors, limit: int) -> list[str]:
        """Return the keys of the user's vectors nearest to this one: O(the user's vectors)."""
        alias = blake2b(user.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        select = sa.select(vectors.c.key, vectors.c.vector).where(self._own, vectors.c.user_id == alias)
        rows = self._do(lambda connection: connection.execute(select).all())
        if not rows:
            return []
        near = np.stack([np.frombuffer(each, dtype="<f4") for _, each in rows]) @ np.ravel(vector)
        return [rows[at][0] for at in np.argsort(-near, kind="stable")[:limit].tolist()]

    def count(self) -> int:
        """Return how many vectors there are."""
        select = sa.select(sa.func.count()).select_from(vectors).where(self._own)
        return self._do(lambda connection: connection.scalar(select) or 0)

    def keys(self) -> set[str]:
        """Return the keys of all vectors."""
        select = sa.select(vectors.c.key).where(self._own)
        return self._do(lambda connection: set(connection.scalars(select)))

    def check(self, keys: Sequence[str], sample: int, others: Collection[str]) -> Health:
        """See `VectorIndex.check`. What is there is found, since no index is searched."""
        there = self.keys()
        searched = len(self.get(keys[:sample]))
        missing, strays = len(set(keys) - there), len(there.difference(keys, others))
        return Health(count=len(there), missing=missing, searched=searched, found=searched, strays=strays)

    def drop(self) -> None:
        """Delete all vectors of this embedding function."""
        self._do(lambda connection: connection.execute(sa.delete(vectors).where(self._own)).rowcount)
        self.dimensions = None

    def drop_others(self) -> int:
        """Delete the vectors of other embedding functions under this name; return how many of these there were."""
        which = self._named, ~self._own

        def work(connection: sa.Connection) -> int:
            names = connection.scalar(sa.select(sa.func.count(vectors.c.collection.distinct())).where(*which)) or 0
            connection.execute(sa.delete(vectors).where(*which))
            return names

        return self._do(work)

    def scrub(self) -> None:
        """Do nothing: the server's files are its own."""

    def close(self) -> None:  # type: ignore[override]
        """Close the connections. Closing twice is fine; the next verb opens them again."""
        self._engine.dispose()

    @property
    def _own(self) -> sa.ColumnElement[bool]:
        return vectors.c.collection == self._collection

    @property
    def _named(self) -> sa.ColumnElement[bool]:
        """Whether a vector is of this name, of whichever embedding function."""
        is_long = sa.func.length(vectors.c.collection) == len(self._collection)
        return sa.and_(vectors.c.collection.startswith(self._prefix, autoescape=True), is_long)

    def _do(self, work: Callable[[sa.Connection], Result]) -> Result:
        with self._translated():
            try:
                return self._checked(lambda: self._connected(self._engine, work))
            except (sa.exc.DBAPIError, self._driver.Error) as error:
                if not self._was_recreated(error):
                    raise
            return self._checked(lambda: self._connected(self._engine, work))
