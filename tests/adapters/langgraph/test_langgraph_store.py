"""`TurnwiseStore`: items, filters, namespaces, expiry, vectors and batches."""

import asyncio
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from turnwise.adapters import TurnwiseStore
from turnwise.errors import ConfigError, CorruptRecordError, StoreClosedError
from turnwise.testing.embedding import HashEmbedding


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/items.db"
    return str(request.getfixturevalue("database"))


@pytest.fixture
def store(url: str) -> Iterator[TurnwiseStore]:
    with TurnwiseStore(url, embedding=HashEmbedding(), fields=["text"]) as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]
    monkeypatch.setattr("turnwise.adapters.langgraph.store.time.time", lambda: now[0])
    return now


def names(items: Any) -> list[str]:
    return [item.key for item in items]


def test_items_filters_and_namespaces_are_as_in_langgraphs_store_in_memory(store: TurnwiseStore) -> None:
    reference = InMemoryStore()
    values: list[Any] = [{"n": 1, "tags": ["a"]}, {"n": 2.5, "d": {"x": "y"}}, {"n": None}, {"text": "é" * 3000}]
    for each_store in (store, reference):
        for index, value in enumerate(values):
            each_store.put(("users", str(index % 2), "notes"), f"k{index}", value)
        each_store.put(("usersx", "0"), "k9", {"n": 1})
        each_store.put(("users", "0", "notes"), "k0", {"n": 4})
        each_store.delete(("users", "1", "notes"), "k3")
    filters: list[Any] = [None, {"n": 4}, {"n": {"$ne": 4}}, {"d": {"x": "y"}}, {"tags": ["a"]}, {"n": {"$eq": None}}]
    for prefix in ((), ("users",), ("users", "1"), ("user",)):
        for condition in filters:
            results = store.search(prefix, filter=condition)
            assert sorted(names(results)) == sorted(names(reference.search(prefix, filter=condition)))
    for matching in ({"prefix": ("users", "*")}, {"suffix": ("notes",)}, {"max_depth": 1}, {"limit": 1, "offset": 1}):
        options: Any = matching
        assert store.list_namespaces(**options) == reference.list_namespaces(**options)
    for namespace, key in ((("users", "0", "notes"), "k0"), (("users", "0"), "k0"), (("usersx", "0"), "k9")):
        item, reference_item = store.get(namespace, key), reference.get(namespace, key)
        assert (item and (item.value, item.namespace)) == (
            reference_item and (reference_item.value, reference_item.namespace)
        )
    assert names(store.search((), filter={"n": {"$gte": 2, "$lt": 5}})) == ["k0", "k1"]
    assert names(store.search((), limit=2, offset=1)) == names(store.search(()))[1:3]


def test_a_query_finds_the_nearest_and_then_those_without_vectors(store: TurnwiseStore) -> None:
    store.put(("d",), "whales", {"text": "Whales sleep in the sea.", "kind": "a"})
    store.put(("d",), "rivers", {"text": "Rivers bend.", "kind": "b"})
    store.put(("d",), "plain", {"text": "Whales sleep.", "kind": "a"}, index=False)
    store.put(("d",), "other", {"title": "How whales sleep", "kind": "b"}, index=["title"])
    results = store.search(("d",), query="do whales sleep?")
    assert {*names(results)[:2]} == {"whales", "other"}
    assert names(results)[2:] == ["rivers", "plain"]
    assert results[0].score is not None and results[0].score > (results[2].score or 0)
    assert results[3].score is None
    assert names(store.search(("d",), query="whales", filter={"kind": "b"}, limit=1)) == ["other"]
    store.put(("d",), "whales", {"text": "Volcanoes."})
    assert names(store.search(("d",), query="whales sleep"))[0] == "other"


def test_an_expired_item_is_gone_and_reading_lets_its_time_begin_again(url: str, clock: list[float]) -> None:
    with TurnwiseStore(url, ttl={"default_ttl": 10}) as store:
        store.put(("t",), "read", {})
        store.put(("t",), "unread", {})
        store.put(("t",), "for good", {}, ttl=None)
        clock[0] += 500
        assert store.get(("t",), "read")
        assert len(store.search(("t",), refresh_ttl=False)) == 3
        clock[0] += 200
        assert {*names(store.search(("t",), refresh_ttl=False))} == {"read", "for good"}
        assert store.get(("t",), "unread") is None
        clock[0] += 10_000
        assert store.sweep_ttl() == 2
        assert store.list_namespaces() == [("t",)]
        store.delete(("t",), "for good")
        assert store.list_namespaces() == []


def test_a_batch_reads_what_was_before_and_writes_all_or_nothing(store: TurnwiseStore) -> None:
    store.put(("b",), "one", {"n": 1})
    ops: Any = [GetOp(("b",), "one"), PutOp(("b",), "one", None), PutOp(("b",), "two", {"n": 1})]
    ops += [PutOp(("b",), "two", {"n": 2}), GetOp(("b",), "two"), SearchOp(("b",)), ListNamespacesOp()]
    got, _, _, _, nothing, results, spaces = store.batch(ops)
    assert isinstance(got, object) and getattr(got, "value", None) == {"n": 1}
    assert (nothing, names(results), spaces) == (None, ["one"], [("b",)])
    assert names(store.search(("b",))) == ["two"]
    with pytest.raises(ConfigError, match="cannot be serialised"):
        store.batch([PutOp(("b",), "three", {}), PutOp(("b",), "four", {"f": object()})])
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(("b",), "three", {}), PutOp(("b", "x.y"), "four", {})])
    assert names(store.search(("b",))) == ["two"]


def test_many_writers_in_several_stores_do_not_lose_an_item(url: str) -> None:
    async def play() -> None:
        async with TurnwiseStore(url) as first, TurnwiseStore(url) as two:
            await first.aget(("w",), "0")
            puts = [store.aput(("w",), f"{number}", {"n": number}) for number in range(15) for store in (first, two)]
            await asyncio.gather(*puts)
            assert len(await two.asearch(("w",), limit=100)) == 15

    asyncio.run(play())


def test_bad_input_is_refused_and_a_store_travels_as_its_settings(store: TurnwiseStore) -> None:
    for namespace in ((), ("",), ("a.b",), (3,), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})  # type: ignore[arg-type]
    for filter_ in ({"a": {"$in": [1]}}, {"a": {"b": {"$like": "x"}}}):
        with pytest.raises(ConfigError, match="filter"):
            store.search((), filter=filter_)
    with pytest.raises(ConfigError, match="limit"):
        store.search((), limit=-1)
    with pytest.raises(ConfigError, match="ttl"):
        store.put(("a",), "k", {}, ttl=0)
    with pytest.raises(ConfigError, match="use sqlite:/// or postgresql://"):
        TurnwiseStore("memory://")
    store.put(("a",), "k", {"n": 1})
    with pickle.loads(pickle.dumps(store)) as again:
        assert again.get(("a",), "k").value == {"n": 1}
    with pytest.raises(StoreClosedError):
        again.get(("a",), "k")


def test_a_damaged_item_is_reported_by_its_name(tmp_path: Path) -> None:
    import sqlite3

    with TurnwiseStore(f"sqlite:///{tmp_path}/items.db") as store:
        store.put(("a",), "k", {"n": 1})
        with closing(sqlite3.connect(tmp_path / "items.db")) as connection, connection:
            connection.execute("UPDATE turnwise_langgraph_items SET value = x'07'")
        with pytest.raises(CorruptRecordError, match="item 'k'"):
            store.get(("a",), "k")


def test_nodes_of_a_graph_use_it(store: TurnwiseStore) -> None:
    def remember(state: MessagesState, *, store: BaseStore) -> Any:
        store.put(("users", "sarah"), "name", {"text": state["messages"][-1].content})
        return {}

    graph = StateGraph(MessagesState).add_node("remember", remember).add_edge(START, "remember")
    graph.compile(store=store).invoke({"messages": [("user", "I am Sarah")]})  # type: ignore[call-overload]
    assert store.search(("users",), query="Sarah")[0].value == {"text": "I am Sarah"}
