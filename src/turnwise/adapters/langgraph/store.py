"""`TurnwiseStore`: LangGraph's store on our stores."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import ormsgpack

from turnwise.adapters.langgraph.encoding import pack, unpack
from turnwise.adapters.langgraph.items import Batch, ItemKey, Search, open_items
from turnwise.adapters.version_checks import framework
from turnwise.errors import ConfigError, shown
from turnwise.memory.stores.loop_thread import LoopThread
from turnwise.memory.stores.urls import redact
from turnwise.memory.values.ids import check_names

with framework("langgraph-checkpoint", extra="langgraph", tested="4.3"):
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        get_text_at_path,
        validate_op_namespace,
    )

MAX_TTL_MINUTES = 1e8
"""The longest time to live, in minutes: two centuries."""

MAX_VALUE_BYTES = 2**28
"""The most bytes of a value: no store takes a row that is much larger."""

Embedding = Callable[[Sequence[str]], Any]
"""An embedding function, as `VectorMemory` takes it: returns a vector for each text."""

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, than: bool(value == than),
    "$ne": lambda value, than: bool(value != than),
    "$gt": lambda value, than: bool(value > than),
    "$gte": lambda value, than: bool(value >= than),
    "$lt": lambda value, than: bool(value < than),
    "$lte": lambda value, than: bool(value <= than),
}


class TurnwiseStore(BaseStore):
    """Keeps the items of LangGraph's graphs in SQLite or PostgreSQL, beside sessions if wanted.

    Methods of one store may be called from any threads and event loops, and several processes may use one database.

    **Batches.** The reads of a batch see the state before its writes, at one moment. Its writes are one transaction; of
    two puts of one item the last counts. Reads that refresh items are a transaction of their own.

    **Time to live.** An item that has expired is neither found nor listed. It is deleted with the next put or deletion,
    or by `sweep_ttl`. A read that finds an item lets its time begin again, unless `refresh_ttl=False`.

    **Search.** With a query and an embedding, the items under a prefix are ranked by the cosine of their nearest
    vector, then come those without one; else the latest updated come first. It reads all items under the prefix that
    have to be compared with the filter or the query. `$gt` and its like compare by Python's operators; a value that
    cannot be compared does not match.

    Args:
        url: `sqlite:///path/to/file.db` or `postgresql://user:password@host/name`; it may be a session store's.
            Redis keeps sessions and memory items only.
        embedding: what makes vectors, as `VectorMemory` takes it; None for no vectors.
        fields: the paths of an item's value that are embedded, each text by itself; `$` is the whole value as JSON.
        ttl: LangGraph's `TTLConfig`: `default_ttl` in minutes, and `refresh_on_read`.
        serde: LangGraph's serializer of values; `JsonPlusSerializer()` if not given.

    Raises:
        StoreURLError: the URL's scheme is not known, or its driver is not installed.
        ConfigError: the URL names no SQLite or PostgreSQL.
    """

    supports_ttl = True

    def __init__(
        self,
        url: str,
        *,
        embedding: Embedding | None = None,
        fields: Sequence[str] = ("$",),
        ttl: TTLConfig | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        self.ttl_config = ttl
        self._settings: dict[str, Any] = {
            "url": url,
            "embedding": embedding,
            "fields": tuple(fields),
            "ttl": ttl,
            "serde": serde,
        }
        self._embedding, self._fields = embedding, tuple(fields)
        self._serde = serde or JsonPlusSerializer()
        self._items = open_items(url)
        self._loop = LoopThread(redact(url))

    def __repr__(self) -> str:
        return f"TurnwiseStore({redact(self._settings['url'])!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(TurnwiseStore, **self._settings), ()

    def close(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""
        self._loop.close_and_wait(self._items.close)

    async def aclose(self) -> None:
        """Close connections and files. Closing twice is fine; any other call afterwards raises StoreClosedError."""
        await self._loop.close(self._items.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; return their results in order. Blocks until the writes are durable. See the class.

        Raises:
            InvalidNamespaceError: LangGraph's: a label is empty, no text, or has a dot; nothing was done.
            InvalidInputError: an operation cannot be carried out, or namespace and key of an item have a null character
                or a lone surrogate, or take more than 2,560 bytes; nothing was done.
        """
        work = _Work(ops, self._serde)
        vectors = self._embed(work.texts(self._fields)), self._embed_queries(work.queries())
        return self._loop.wait(lambda: self._carry_out(work, *vectors))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; return their results in order, when the writes are durable. See the class.

        Raises:
            InvalidNamespaceError: LangGraph's: a label is empty, no text, or has a dot; nothing was done.
            InvalidInputError: an operation cannot be carried out, or namespace and key of an item have a null character
                or a lone surrogate, or take more than 2,560 bytes; nothing was done.
        """
        work = _Work(ops, self._serde)
        texts, queries = work.texts(self._fields), work.queries()
        vectors: dict[str, Any] = {}
        query_vectors: dict[str, Any] = {}
        if self._embedding and (texts or queries):
            vectors = await asyncio.to_thread(self._embed, texts)
            query_vectors = await asyncio.to_thread(self._embed_queries, queries)
        return await self._loop.run(lambda: self._carry_out(work, vectors, query_vectors))

    def sweep_ttl(self) -> int:
        """Delete the items that have expired; return how many. Blocks."""
        return self._loop.wait(lambda: self._items.sweep(time.time()))

    async def asweep_ttl(self) -> int:
        """Delete the items that have expired; return how many."""
        return await self._loop.run(lambda: self._items.sweep(time.time()))

    def _embed(self, texts: Mapping[ItemKey, Sequence[str]]) -> dict[str, Any]:
        """Return the vectors of the texts of all items, made by one call."""
        unique = [*dict.fromkeys(text for item_texts in texts.values() for text in item_texts)]
        if not (self._embedding and unique):
            return {}
        return dict(zip(unique, (np.asarray(vector, np.float32) for vector in self._embedding(unique)), strict=True))

    def _embed_queries(self, queries: Sequence[str]) -> dict[str, Any]:
        if not (self._embedding and queries):
            return {}
        embed = getattr(self._embedding, "embed_query", self._embedding)
        return dict(zip(queries, (np.asarray(vector, np.float32) for vector in embed(queries)), strict=True))

    async def _carry_out(
        self, work: _Work, vectors: Mapping[str, Any], query_vectors: Mapping[str, Any]
    ) -> list[Result]:
        now = time.time()
        batch = work.batch(now, self._fields if self._embedding else (), vectors)
        reads = batch.gets or batch.searches or batch.lists_namespaces
        rows, searches, namespaces = await self._items.read(batch) if reads else ({}, [], [])
        results, refreshed = work.results(rows, searches, namespaces, query_vectors)
        if refreshed:
            await self._items.refresh(refreshed, now)
        if batch.puts:
            await self._items.write(batch)
        return results


class _Work:
    """Operations, checked, with the values of their puts serialised."""

    def __init__(self, ops: Iterable[Op], serde: SerializerProtocol) -> None:
        self._ops, self._serde = [*ops], serde
        self._values: dict[ItemKey, bytes] = {}
        for op in self._ops:
            if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
                raise ConfigError("ops", op, "must be GetOp, SearchOp, PutOp or ListNamespacesOp")
            validate_op_namespace(op)
            if isinstance(op, GetOp | PutOp):
                check_names("namespace, key", *_name(op))
            elif isinstance(op, SearchOp):
                check_names("namespace_prefix", _stored(op.namespace_prefix))
            if isinstance(op, SearchOp | ListNamespacesOp) and (op.limit < 0 or op.offset < 0):
                raise ConfigError("limit, offset", (op.limit, op.offset), "must not be below 0")
            if isinstance(op, SearchOp):
                _check_filter(op.filter or {})
            if isinstance(op, PutOp):
                self._check_put(op)

    def _check_put(self, op: PutOp) -> None:
        if not op.namespace:
            raise ConfigError("namespace", op.namespace, "must have a label")
        if op.ttl is not None and not 0 < op.ttl <= MAX_TTL_MINUTES:
            raise ConfigError("ttl", op.ttl, f"must be above 0 and up to {MAX_TTL_MINUTES:g} minutes, or None")
        if op.value is None:
            return
        try:
            kind, data = self._serde.dumps_typed(dict(op.value))
        except (TypeError, ValueError) as error:
            raise ConfigError("value", type(op.value).__name__, f"cannot be serialised: {error}") from error
        if len(data) > MAX_VALUE_BYTES:
            reason = f"takes {len(data)} bytes, and an item's value may take {MAX_VALUE_BYTES}"
            raise ConfigError("value", f"that of {shown(op.key)}", reason)
        self._values[_name(op)] = pack([kind, bytes(data)])

    @property
    def _puts(self) -> dict[ItemKey, PutOp]:
        return {_name(op): op for op in self._ops if isinstance(op, PutOp)}

    @property
    def _searches(self) -> list[SearchOp]:
        return [op for op in self._ops if isinstance(op, SearchOp)]

    def texts(self, fields: Sequence[str]) -> dict[ItemKey, list[str]]:
        """Return the texts of each item that is put, of which vectors are made."""
        return {
            name: [
                text for path in (fields if op.index is None else op.index) for text in get_text_at_path(value, path)
            ]
            for name, op in self._puts.items()
            if op.index is not False and (value := op.value) is not None
        }

    def queries(self) -> list[str]:
        """Return the different queries."""
        return [*dict.fromkeys(op.query for op in self._searches if op.query)]

    def batch(self, now: float, fields: Sequence[str], made_vectors: Mapping[str, Any]) -> Batch:
        """Return what the database does. A search that is ranked or filtered here reads all under its prefix."""
        texts = self.texts(fields) if made_vectors else {}
        puts: dict[ItemKey, dict[str, Any] | None] = {}
        for name, op in self._puts.items():
            vectors = [made_vectors[text].tobytes() for text in texts.get(name, ())]
            ttl_minutes = op.ttl
            ttl_s = None if ttl_minutes is None else ttl_minutes * 60
            puts[name] = (
                None
                if op.value is None
                else {
                    "value": self._values[name],
                    "vectors": ormsgpack.packb(vectors) if vectors else None,
                    "updated_at": now,
                    "ttl_s": ttl_s,
                    "expires_at": None if ttl_s is None else now + ttl_s,
                }
            )
        return Batch(
            now=now,
            gets=[_name(op) for op in self._ops if isinstance(op, GetOp)],
            searches=[
                Search(_stored(op.namespace_prefix), None, 0)
                if op.filter or op.query
                else Search(_stored(op.namespace_prefix), op.limit, op.offset)
                for op in self._searches
            ],
            lists_namespaces=any(isinstance(op, ListNamespacesOp) for op in self._ops),
            puts=puts,
        )

    def results(
        self,
        rows: Mapping[ItemKey, Any],
        searches: Sequence[Sequence[Any]],
        names: Sequence[str],
        query_vectors: Mapping[str, Any],
    ) -> tuple[list[Result], list[ItemKey]]:
        """Return the results of all operations, and the items that they refresh."""
        results: list[Result] = []
        refreshed: dict[ItemKey, None] = {}
        remaining = iter(searches)

        def note(row: Any, refresh: bool) -> None:
            if refresh and row.ttl_s is not None:
                refreshed[row.namespace, row.key] = None

        for op in self._ops:
            if isinstance(op, GetOp):
                row = rows.get(_name(op))
                if row is not None:
                    note(row, op.refresh_ttl)
                results.append(None if row is None else Item(value=self._value(row), **_described(row)))
            elif isinstance(op, SearchOp):
                chosen = self._chosen(op, next(remaining), query_vectors)
                for row, _, _ in chosen:
                    note(row, op.refresh_ttl)
                results.append(
                    [SearchItem(value=value, score=score, **_described(row)) for row, value, score in chosen]
                )
            elif isinstance(op, ListNamespacesOp):
                results.append(_listed(op, names))
            else:
                results.append(None)
        return results, [*refreshed]

    def _chosen(
        self, op: SearchOp, rows: Sequence[Any], query_vectors: Mapping[str, Any]
    ) -> list[tuple[Any, dict[str, Any], float | None]]:
        pairs = [(row, self._value(row)) for row in rows]
        if op.filter:
            pairs = [
                (row, value) for row, value in pairs if all(_matches(value.get(k), v) for k, v in op.filter.items())
            ]
        scored = [(row, value, _score(row, query_vectors.get(op.query or ""))) for row, value in pairs]
        if op.query and query_vectors:
            scored.sort(key=_rank, reverse=True)
        return scored[op.offset : op.offset + op.limit] if op.filter or op.query else scored

    def _value(self, row: Any) -> dict[str, Any]:
        kind, data = unpack(f"item {row.key!r} of namespace {row.namespace!r}", row.value)
        value: dict[str, Any] = self._serde.loads_typed((kind, data))
        return value


def _stored(namespace: Sequence[str]) -> str:
    return "".join(f"{label}." for label in namespace)


def _name(op: GetOp | PutOp) -> ItemKey:
    return _stored(op.namespace), op.key


def _described(row: Any) -> dict[str, Any]:
    return {
        "namespace": tuple(row.namespace[:-1].split(".")),
        "key": row.key,
        "created_at": datetime.fromtimestamp(row.created_at, UTC),
        "updated_at": datetime.fromtimestamp(row.updated_at, UTC),
    }


def _rank(scored: tuple[Any, dict[str, Any], float | None]) -> float:
    """Return the score of an item; items without vectors come last."""
    _, _, score = scored
    return -2.0 if score is None else score


def _score(row: Any, query: Any) -> float | None:
    if query is None or row.vectors is None:
        return None
    vectors = np.array([np.frombuffer(vector, np.float32) for vector in ormsgpack.unpackb(row.vectors)])
    if vectors.shape[1] != len(query):
        return None  # made by another embedding
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return float(np.max(vectors @ query / np.where(lengths == 0, 1, lengths)))


def _check_filter(condition: Any) -> None:
    if isinstance(condition, Mapping):
        for name, value in condition.items():
            if str(name).startswith("$") and name not in _OPERATORS:
                raise ConfigError("filter", name, f"must be one of {', '.join(_OPERATORS)}")
            _check_filter(value)


def _matches(value: Any, condition: Any) -> bool:
    if isinstance(condition, Mapping):
        if any(str(name).startswith("$") for name in condition):
            try:
                return all(_OPERATORS[name](value, than) for name, than in condition.items())
            except TypeError:  # they cannot be compared
                return False
        return isinstance(value, Mapping) and all(
            _matches(value.get(name), expected) for name, expected in condition.items()
        )
    if isinstance(condition, list | tuple):
        is_alike = isinstance(value, list | tuple) and len(value) == len(condition)
        return is_alike and all(_matches(element, expected) for element, expected in zip(value, condition, strict=True))
    return bool(value == condition)


def _listed(op: ListNamespacesOp, names: Sequence[str]) -> list[tuple[str, ...]]:
    namespaces = [tuple(name[:-1].split(".")) for name in names]
    matching = {
        namespace[: op.max_depth]
        for namespace in namespaces
        if all(_is_under(namespace, condition) for condition in op.match_conditions or ())
    }
    return sorted(matching)[op.offset : op.offset + op.limit]


def _is_under(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    path = condition.path
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(namespace) >= len(path) and all(
        wanted in ("*", label) for wanted, label in zip(path, labels, strict=True)
    )
