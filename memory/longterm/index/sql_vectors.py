"""`SQLVectors`: vectors under keys in a table of PostgreSQL, an implementation of `Vectors`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import sqlalchemy as sa

from turnwise.memory.longterm.index.vectors import check_dimensions
from turnwise.memory.stores.sql.database import SQLDatabase, insert_into
from turnwise.memory.stores.sql.schema_version import Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

Result = TypeVar("Result")

PAGE = 2_000
"""How many vectors are read at once."""

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
        """The length of the stored vectors; None while there are none, or before the first use."""

    def add(self, keys: Sequence[str], users: Sequence[str], new: Array, items: Sequence[str]) -> None:
        """See `Vectors.add`."""
        rows = [
            {
                "collection": self._collection,
                "key": key,
                "item": item,
                "user_id": blake2b(user.encode(errors="surrogatepass"), digest_size=16).hexdigest(),
                "vector": np.asarray(vector, dtype="<f4").tobytes(),
            }
            for key, user, vector, item in sorted(zip(keys, users, new, items, strict=True), key=lambda row: row[0])
        ]

        def work(connection: sa.Connection) -> int | None:
            one_vector = (
                sa.select(sa.func.length(vectors.c.vector)).where(vectors.c.collection == self._collection).limit(1)
            )
            size = connection.scalar(one_vector)
            dimensions = None if size is None else size // 4
            if dimensions in (None, new.shape[1]):
                insert = insert_into(vectors, connection.dialect)
                replaced = {"vector": insert.excluded.vector, "item": insert.excluded.item}
                statement = insert.on_conflict_do_update(index_elements=["collection", "key"], set_=replaced)
                connection.execute(statement, rows)
            return dimensions

        self.dimensions = self._do(work)
        check_dimensions(self.dimensions, new, self._embedding)
        self.dimensions = new.shape[1]

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """See `Vectors.get`."""

        def work(connection: sa.Connection) -> dict[str, Array]:
            stored: dict[str, Array] = {}
            for start in range(0, len(keys), PAGE):
                is_wanted = vectors.c.key.in_(list(keys[start : start + PAGE]))
                select = sa.select(vectors.c.key, vectors.c.vector).where(self._own, is_wanted)
                stored |= {key: np.frombuffer(vector, dtype="<f4") for key, vector in connection.execute(select)}
            return stored

        stored = self._do(work)
        if stored:
            self.dimensions = len(next(iter(stored.values())))
        return stored

    def delete(self, keys: Sequence[str] | None) -> None:
        """See `Vectors.delete`. PostgreSQL overwrites deleted vectors later, when it vacuums."""
        delete = sa.delete(vectors).where(self._named)
        if keys is not None:
            delete = delete.where(sa.or_(vectors.c.key.in_(list(keys)), vectors.c.item.in_(list(keys))))
        self._do(lambda connection: connection.execute(delete).rowcount)
        if keys is None:
            self.dimensions = None

    def keys(self) -> set[str]:
        """See `Vectors.keys`."""
        select = sa.select(vectors.c.key).where(self._own)
        return self._do(lambda connection: set(connection.scalars(select)))

    def close(self) -> None:  # type: ignore[override]
        """Close the connections. Closing twice is fine; the next verb opens them again."""
        self._engine.dispose()

    @property
    def _own(self) -> sa.ColumnElement[bool]:
        return vectors.c.collection == self._collection

    @property
    def _named(self) -> sa.ColumnElement[bool]:
        """Whether a vector belongs to this name, with any embedding function."""
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
