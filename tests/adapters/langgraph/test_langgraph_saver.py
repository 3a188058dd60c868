"""`TurnwiseSaver`: LangGraph's conformance suite, real graphs, one writer, space, kills and bad input."""

import asyncio
import operator
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
import sqlalchemy as sa
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, StateUpdate, interrupt

import scale
from turnwise.adapters import TurnwiseSaver
from turnwise.adapters.langgraph import threads
from turnwise.adapters.langgraph.checkpoints import CheckpointStore, open_checkpoints
from turnwise.adapters.langgraph.conformance import main, report_on
from turnwise.adapters.langgraph.encoding import Codec, Known, arranged, share, value_of
from turnwise.errors import (
    CheckpointFencedError,
    CheckpointInUseError,
    CheckpointNotFoundError,
    ConfigError,
    CorruptRecordError,
    InvalidIdError,
    StoreClosedError,
    StoreURLError,
    ThreadExistsError,
    ThreadNotFoundError,
)

T: Any = {"configurable": {"thread_id": "t"}}
STORES = ["memory", "sqlite", "postgresql"]


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """A connection of the test's own, in a transaction."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{folder}/threads.db"
    return str(request.getfixturevalue("database"))


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointStore]:
    """The stores that savers have opened since."""
    stores: list[CheckpointStore] = []

    def noted(url: str) -> CheckpointStore:
        stores.append(open_checkpoints(url))
        return stores[-1]

    monkeypatch.setattr("turnwise.adapters.langgraph.saver.open_checkpoints", noted)
    return stores


@pytest.fixture
def saver(opened: list[CheckpointStore], url: str) -> Iterator[TurnwiseSaver]:
    with TurnwiseSaver(url) as saver:
        yield saver


@pytest.fixture
def quick(opened: list[CheckpointStore]) -> Iterator[TurnwiseSaver]:
    with TurnwiseSaver("memory://") as saver:
        yield saver


def said(text: str) -> Any:
    return {"messages": [("user", text)]}


def chat(saver: BaseCheckpointSaver[Any], model: Callable[[str], Any] = lambda prompt: f"re {prompt}") -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [AIMessage(model(state["messages"][-1].content))]})
    graph.add_edge(START, "model")
    return graph.compile(checkpointer=saver)


class _Page(TypedDict):
    page: bytes
    texts: Annotated[list[str], operator.add]


def latest(app: Any, thread: Any = T) -> list[str]:
    return [message.content for message in app.get_state(thread).values["messages"]]


def children(saver: TurnwiseSaver, thread: Any = T) -> dict[str | None, int]:
    """Return how many checkpoints follow each."""
    counts: dict[str | None, int] = {}
    for checkpoint in saver.list({"configurable": {**thread["configurable"], "checkpoint_ns": ""}}):
        parent = checkpoint.parent_config["configurable"]["checkpoint_id"] if checkpoint.parent_config else None
        counts[parent] = counts.get(parent, 0) + 1
    return counts


def test_every_test_of_the_conformance_suite_passes_and_none_is_skipped(url: str) -> None:
    results = asyncio.run(report_on(url)).results
    assert [failure for result in results.values() for failure in result.failures] == []
    assert sum(result.tests_passed for result in results.values()) == 81
    assert sum(result.tests_skipped for result in results.values()) == 0
    if not url.startswith("memory:"):
        with TurnwiseSaver(url) as saver:
            assert list(saver.list(None)) == []


def test_one_command_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory://"]) == 0
    assert "81 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    assert main(["mysql://localhost/x"]) == 2
    assert "its scheme is not known" in capsys.readouterr().err


# One writer


def test_of_two_writers_from_one_checkpoint_the_second_is_refused(saver: TurnwiseSaver) -> None:
    app = chat(saver)
    app.invoke(said("hello"), T)
    first, two = saver.get_tuple(T), saver.get_tuple(T)
    assert first and two
    saver.put_writes(first.config, [("messages", "a")], "task")
    with pytest.raises(CheckpointFencedError) as refused:
        saver.put_writes(two.config, [("messages", "b")], "task")
    with pytest.raises(CheckpointFencedError, match="invoke the graph again"):
        saver.put(two.config, made("2"), {"step": 2}, {})
    with pytest.raises(CheckpointFencedError):
        saver.put(by_hand(two.config), made("2"), {"step": 2}, {})
    assert (refused.value.thread_id, refused.value.latest) == ("t", first.checkpoint["id"])
    saver.put(first.config, made("3"), {"step": 2}, {})
    latest_checkpoint = saver.get_tuple(T)
    assert latest_checkpoint and latest_checkpoint.checkpoint["id"] == made("3")["id"]
    assert set(children(saver).values()) == {1}


def test_a_run_that_hung_goes_no_further_once_another_has_taken_over(url: str) -> None:
    async def play() -> None:
        hangs, goes_on = asyncio.Event(), asyncio.Event()

        async def model(state: Any) -> Any:
            if state["messages"][-1].content == "slow":
                hangs.set()
                await goes_on.wait()
            return {"messages": [AIMessage("answer")]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_edge(START, "model")
        # Two savers are as two processes; what is in memory is in one.
        async with TurnwiseSaver(url) as saver, TurnwiseSaver(url) as another:
            second = saver if url.startswith("memory:") else another
            hung = asyncio.create_task(graph.compile(checkpointer=saver).ainvoke(said("slow"), T, durability="sync"))
            await hangs.wait()
            app = graph.compile(checkpointer=second)
            assert len((await app.ainvoke(said("quick"), T))["messages"]) == 3
            goes_on.set()
            with pytest.raises(CheckpointFencedError):
                await hung
            texts = [message.content for message in (await app.aget_state(T)).values["messages"]]
            assert texts == ["slow", "quick", "answer"]
            assert [checkpoint async for checkpoint in second.alist(T) if checkpoint.parent_config is None] != []
            parents = [str(checkpoint.parent_config) async for checkpoint in second.alist(T)]
            assert len({*map(parent_of, parents)}) == len(parents)

    asyncio.run(play())


def test_two_first_runs_of_a_thread_do_not_both_begin_it(quick: TurnwiseSaver) -> None:
    quick.put({"configurable": {"thread_id": "t"}}, made("1", a=1), {"step": -1}, {"a": "1"})
    with pytest.raises(CheckpointFencedError):
        quick.put({"configurable": {"thread_id": "t"}}, made("2", a=2), {"step": -1}, {"a": "1"})


def test_a_caller_may_branch_from_an_earlier_checkpoint(quick: TurnwiseSaver) -> None:
    app = chat(quick)
    for prompt in ("one", "two", "three"):
        app.invoke(said(prompt), T)
    old = next(state for state in app.get_state_history(T) if len(state.values["messages"]) == 2)
    app.invoke(said("other"), old.config)
    assert latest(app) == ["one", "re one", "other", "re other"]
    config = app.update_state(old.config, {"messages": [AIMessage("told")]}, as_node="model")
    assert latest(app) == latest(app, config) == ["one", "re one", "told"]
    app.invoke(said("on"), T)
    assert latest(app) == ["one", "re one", "told", "on", "re on"]
    again = next(state for state in app.get_state_history(T) if state.next == ("model",))
    app.invoke(None, again.config)
    assert latest(app)[-2:] == ["on", "re on"]
    app.bulk_update_state(old.config, [[StateUpdate(None, "__copy__")], [StateUpdate(said("bulk"), "model")]])
    assert latest(app) == ["one", "re one", "bulk"]
    first = [*app.get_state_history(T)][-1]
    app.bulk_update_state(first.config, [[StateUpdate(None, "__copy__")]])
    assert app.get_state(T).values["messages"] == []
    assert [texts for texts in (latest(app, state.config) for state in app.get_state_history(T)) if "three" in texts]


def test_a_subgraph_with_its_own_history_can_be_replayed_from_its_beginning(quick: TurnwiseSaver) -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("count", lambda state: {"messages": [AIMessage(str(len(state["messages"])))]})
    inner.add_edge(START, "count")
    graph = StateGraph(MessagesState)
    graph.add_node("inner", inner.compile(checkpointer=True))
    graph.add_edge(START, "inner")
    app = graph.compile(checkpointer=quick)
    reference = graph.compile(checkpointer=InMemorySaver())
    for app_or_reference in (app, reference):
        app_or_reference.invoke(said("one"), T)
        app_or_reference.invoke(said("two"), T)
        first = [state for state in app_or_reference.get_state_history(T) if state.next == ("inner",)][-1]
        app_or_reference.invoke(None, first.config)
        app_or_reference.invoke(said("three"), T)
    assert latest(app) == latest(reference)


def test_an_interrupted_run_goes_on_in_another_process(url: str) -> None:
    def ask(state: Any) -> Any:
        return {"messages": [AIMessage(f"{interrupt('sure?')}!")]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    with TurnwiseSaver(url) as first:
        assert graph.compile(checkpointer=first).invoke(said("go"), T)["__interrupt__"][0].value == "sure?"
        if url.startswith("memory:"):
            graph.compile(checkpointer=first).invoke(Command(resume="yes"), T)
            return
    with TurnwiseSaver(url) as second:
        app = graph.compile(checkpointer=second)
        head = app.get_state(T).config
        app.invoke(Command(resume="yes"), head)
        assert latest(app) == ["go", "yes!"]


# Values


def test_graphs_keep_the_same_as_with_the_saver_in_memory(saver: TurnwiseSaver) -> None:
    """Lists that grow, shrink and change in the middle, branches, and a large value that stays."""

    class State(MessagesState):
        notes: Annotated[list[str], operator.add]
        scores: list[float]
        document: str
        found: dict[str, Any]

    def step(state: Any) -> Any:
        chance = random.Random(len(state["messages"]) * 7 + len(state["notes"]))
        changes: list[Any] = [AIMessage("a" * chance.randrange(200), id=f"m{chance.random()}")]
        if len(state["messages"]) > 4:
            changes.append(RemoveMessage(id=chance.choice(state["messages"]).id))
            changes.append(HumanMessage("edited", id=chance.choice(state["messages"][:2]).id))
        notes = ["ok", "x" * 100, "ok"][: chance.randrange(4)]
        return {"messages": changes, "notes": notes, "scores": [chance.random()] * 3, "found": {"n": notes}}

    def play(saver: Any) -> list[Any]:
        graph = StateGraph(State)
        graph.add_node("step", step)
        graph.add_edge(START, "step")
        app: Any = graph.compile(checkpointer=saver)
        for number in range(8):
            messages = [HumanMessage(f"question {number}", id=f"q{number}")]
            app.invoke({"messages": messages, "document": "d" * 500, "notes": ["n"]}, T)
        early = next(state for state in app.get_state_history(T) if state.metadata["step"] == 10)
        app.invoke({"messages": [HumanMessage("branch", id="b")], "notes": []}, early.config)
        return [(state.metadata["step"], state.values, state.next) for state in app.get_state_history(T)]

    assert play(saver) == play(InMemorySaver())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_delta_channels_are_rebuilt_and_pruning_leaves_what_they_need(quick: TurnwiseSaver, durability: Any) -> None:
    def add(state: list[str], updates: Any) -> list[str]:
        return [*state, *(update_item for update in updates for update_item in update)]

    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(add, snapshot_frequency=4)]

    graph = StateGraph(State)
    graph.add_node("step", lambda state: {"log": [f"after {len(state['log'])}"]})
    graph.add_edge(START, "step")
    app: Any = graph.compile(checkpointer=quick)
    reference: Any = graph.compile(checkpointer=InMemorySaver())
    for number in range(6):
        for app_or_reference in (app, reference):
            app_or_reference.invoke(
                {"log": [str(number)]}, {**T, "metadata": {"run_id": f"r{number}"}}, durability=durability
            )
    histories = [
        [state.values for state in app_or_reference.get_state_history(T)] for app_or_reference in (app, reference)
    ]
    assert histories[0] == histories[1]
    before = app.get_state(T).values
    if durability == "sync":
        with pytest.raises(CheckpointInUseError, match="is rebuilt from"):
            quick.delete_for_runs(["r4"])
    quick.prune(["t"])
    assert app.get_state(T).values == before == reference.get_state(T).values
    assert len([*quick.list(T)]) < len(histories[0])
    app.invoke({"log": ["on"]}, T)
    assert app.get_state(T).values["log"][-2] == "on"


def test_a_function_with_a_checkpointer_gets_what_it_saved(quick: TurnwiseSaver) -> None:
    @entrypoint(checkpointer=quick)
    def chat(text: str, *, previous: list[Any] | None = None) -> list[Any]:
        return [*(previous or []), HumanMessage(text), AIMessage("a" * 100)]

    messages: Any = []
    for number in range(12):
        messages = chat.invoke(str(number), T)
    assert [message.content for message in messages[::2]] == [str(number) for number in range(12)]


def test_each_message_is_stored_once_however_long_the_conversation(tmp_path: Path) -> None:
    from turnwise.adapters.langgraph.checkpoints_sql import checkpoints, elements

    url = f"sqlite:///{tmp_path}/threads.db"
    for part in range(4):  # each in a process of its own, as far as the saver knows
        with TurnwiseSaver(url) as saver:
            app = chat(saver)
            for number in range(5):
                app.invoke(said(f"{part}.{number} " + "q" * 100), T)
    with connected(url) as connection:
        count = connection.scalar(
            sa.select(sa.func.count()).select_from(elements).where(elements.c.channel == "messages")
        )
        sizes = [*connection.scalars(sa.select(sa.func.length(checkpoints.c.record)).order_by(checkpoints.c.id))]
    assert count == 40
    assert max(sizes[-10:]) <= max(sizes[5:15]) + 10


def test_a_channel_replaced_at_each_step_does_not_make_the_process_grow(
    opened: list[CheckpointStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_REMEMBERED_BYTES", 400_000)
    app = StateGraph(_Page).add_node("write", lambda _: {"page": random.randbytes(100_000)}).add_edge(START, "write")
    with TurnwiseSaver(f"sqlite:///{tmp_path}/threads.db") as saver:
        compiled: Any = app.compile(checkpointer=saver)
        for name in ("s", "t"):
            thread = {"configurable": {"thread_id": name}}
            tracemalloc.start()
            for number in range(12):
                said_last = compiled.invoke({"page": b"", "texts": [f"{number} " * 50]}, thread)
                assert compiled.get_state(thread).values == said_last
            grown, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert grown < 800_000, "twelve pages have 1.2 MB"
        ((_, space),) = opened[-1].spaces("t")
        assert space.ends["texts"] == 12  # what is still in the state was not stored again


def count_calls(store: CheckpointStore, *names: str) -> list[str]:
    """Return the list to which the store's calls of these names are added."""
    calls: list[str] = []
    for name in names:
        real = getattr(store, name)

        def counted(*args: Any, name: str = name, real: Any = real) -> Any:
            calls.append(name)
            return real(*args)

        setattr(store, name, counted)
    return calls


def test_a_turn_takes_as_many_calls_of_the_store_at_any_length(
    quick: TurnwiseSaver, opened: list[CheckpointStore]
) -> None:
    calls = count_calls(opened[-1], "read", "values", "commit")
    app = chat(quick)
    app.invoke(said("first"), T)
    for _ in range(3):
        calls.clear()
        app.invoke(said("more"), T)
        assert calls[0] == "read"
        assert set(calls[1:]) == {"commit"}, "elements that the process knows are not read again"


def test_a_thread_is_remembered_while_another_has_many_turns(
    quick: TurnwiseSaver, opened: list[CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_REMEMBERED_BYTES", 100_000)
    app = chat(quick)
    first, other = ({"configurable": {"thread_id": name}} for name in ("first", "other"))
    app.invoke(said("q" * 1000), first)
    for _ in range(20):
        app.invoke(said("q" * 100), other)
    calls = count_calls(opened[-1], "values")
    app.invoke(said("and then?"), first)
    assert calls == []


def test_a_list_reads_the_values_of_many_checkpoints_at_once(opened: list[CheckpointStore], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    with TurnwiseSaver(url) as saver:
        app = chat(saver)
        for number in range(20):
            app.invoke(said(str(number)), {"configurable": {"thread_id": str(number % 2)}})
        calls = count_calls(opened[-1], "read", "writes", "values")
        listed = [*saver.list(None)]
    assert len(listed) == 60
    assert len(calls) <= 20
    assert {len(checkpoint.checkpoint["channel_values"].get("messages", ())) for checkpoint in listed} == {*range(21)}
    with TurnwiseSaver(url) as another:
        assert [checkpoint.checkpoint for checkpoint in another.list(None)] == [
            checkpoint.checkpoint for checkpoint in listed
        ]


def test_a_list_of_all_threads_has_the_checkpoints_of_each_copy(
    saver: TurnwiseSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the same ids, wherever a page ends."""
    chat(saver).invoke(said("hello"), T)
    for name in ("copy", "another"):
        saver.copy_thread("t", name)
    monkeypatch.setattr(threads, "_PAGE", 2)
    listed = [
        (checkpoint.config["configurable"]["thread_id"], checkpoint.checkpoint["id"]) for checkpoint in saver.list(None)
    ]
    assert len(set(listed)) == len(listed) == 3 * len([*saver.list(T)])


@pytest.mark.parametrize("seed", range(20))
def test_a_list_of_spans_has_the_elements_in_order(seed: int) -> None:
    chance, codec = random.Random(seed), Codec(InMemorySaver().serde)
    elements, stored, end = Known(), dict[tuple[str, int], Any](), 0
    values: list[Any] = []
    for _ in range(30):
        match chance.randrange(5):
            case 0 | 1:
                values = [*values, *chance.choices(["ok", "a" * 80, chance.random(), "b" * 90], k=chance.randrange(4))]
            case 2:
                values = [value for value in values if chance.random() > 0.2]
            case 3:
                values = [chance.choice([value, "c" * chance.randrange(99)]) for value in values]
            case 4:
                values = values[chance.randrange(len(values) + 1) :] + values[:2]
        spans, new = arranged([codec.dump(value) for value in values], elements, end)
        stored |= {("c", position): typed for position, typed in new}
        end += len(new)
        assert value_of(codec, "c", [0, *spans], stored) == values
        assert value_of(codec, "c", share([codec.dump(value) for value in values], elements, codec), stored) == values


@pytest.mark.parametrize("kinds", [1, 2, 50])
def test_short_values_that_repeat_are_not_stored_again(kinds: int) -> None:
    codec, chance, elements, end = Codec(InMemorySaver().serde), random.Random(1), Known(), 0
    values: list[Any] = []
    spans: list[int] = []
    for _ in range(100):
        values.append(chance.randrange(kinds))
        spans, new = arranged([codec.dump(str(value)) for value in values], elements, end)
        end += len(new)
    assert end < 110 and len(spans) <= 4


def test_checkpoints_of_another_process_are_read_after_a_restore(tmp_path: Path) -> None:
    file = tmp_path / "threads.db"
    with TurnwiseSaver(f"sqlite:///{file}") as first, TurnwiseSaver(f"sqlite:///{file}") as two:
        chat(first).invoke(said("hello"), T)
        with closing(sqlite3.connect(file)) as database, database, closing(sqlite3.connect(":memory:")) as backup:
            database.backup(backup)
            chat(first).invoke(said("lost"), T)
            for table in ("spaces", "checkpoints", "elements", "writes"):
                name = f"turnwise_langgraph_{table}"
                rows = backup.execute(f"SELECT * FROM {name}").fetchall()
                database.execute(f"DELETE FROM {name}")
                database.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(rows[0]))})", rows)
        chat(two).invoke(said("again"), T)
        assert latest(chat(first)) == latest(chat(two)) == ["hello", "re hello", "again", "re again"]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_checkpoint_is_read_with_the_pending_writes_of_the_same_moment(
    opened: list[CheckpointStore], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TurnwiseSaver(url) as first, TurnwiseSaver(url) as two:
        chat(first).invoke(said("hello"), T)
        read = two.get_tuple(T)
        assert read
        two.put_writes(read.config, [("messages", "a")], "task")
        store: Any = opened[0]
        pending = store._sql.latest_writes  # noqa: SLF001 - between the two statements of a read
        bind = pending.bind

        def late(values: dict[str, Any]) -> Any:
            monkeypatch.undo()
            two.delete_thread("t")
            return bind(values)

        monkeypatch.setattr(pending, "bind", late)
        stored = store.read(("t", ""), None)
        assert stored and stored[1] and len(stored[2]) == 1
        assert first.get_tuple(T) is None


class Reversed:
    """A cipher for tests."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", random.randbytes(4) + bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext[4:])


def test_encrypted_values_are_shared_too_and_no_file_has_their_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    for word in ("first", "second"):
        with TurnwiseSaver(url, serde=EncryptedSerializer(Reversed())) as saver:
            app = chat(saver)
            app.invoke(said(f"the secret is {word}"), T)
    with connected(url) as connection:
        counts = connection.execute(
            sa.text("SELECT count(*) FROM turnwise_langgraph_elements WHERE channel = 'messages'")
        )
        assert counts.scalar_one() == 4
    app = chat(TurnwiseSaver(url, serde=EncryptedSerializer(Reversed())))
    assert latest(app) == [
        "the secret is first",
        "re the secret is first",
        "the secret is second",
        "re the secret is second",
    ]
    app.checkpointer.close()
    assert all(b"the secret" not in file.read_bytes() for file in tmp_path.iterdir())


# Deleting, copying, kills, bad input


def test_deleting_runs_leaves_the_others_and_what_nothing_refers_to_goes(saver: TurnwiseSaver) -> None:
    app = chat(saver)
    for number in range(3):
        app.invoke(said(f"{number}" + "q" * 50), {**T, "metadata": {"run_id": f"r{number}"}})
    saver.delete_for_runs(["r2", "r9"])
    assert [text[0] for text in latest(app)[::2]] == ["0", "1"]
    app.invoke(said("new"), T)
    assert latest(app)[-2:] == ["new", "re new"]
    copied: Any = {"configurable": {"thread_id": "copy"}}
    saver.copy_thread("t", "copy")
    saver.prune(["t", "nobody"])
    assert len([*saver.list(T)]) == 1
    assert latest(app) == latest(app, copied)
    app.invoke(said("on"), T)
    app.invoke(said("on"), copied)
    saver.delete_thread("t")
    assert app.get_state(T).values == {}
    assert latest(app, copied)[-2:] == ["on", "re on"]
    assert {checkpoint.config["configurable"]["thread_id"] for checkpoint in saver.list(None)} == {"copy"}
    saver.delete_for_runs(["r0", "r1"])


def test_a_run_does_not_bring_back_a_thread_deleted_meanwhile(quick: TurnwiseSaver) -> None:
    chat(quick).invoke(said("hello"), T)
    read = quick.get_tuple(T)
    assert read
    quick.delete_thread("t")
    with pytest.raises(CheckpointNotFoundError, match="thread 't' has no checkpoint"):
        quick.put(read.config, made("2"), {}, {})
    assert quick.get_tuple(T) is None


def test_pending_writes_do_not_bring_a_deleted_thread_back(saver: TurnwiseSaver, opened: list[CheckpointStore]) -> None:
    first = saver.put({"configurable": {"thread_id": "first"}}, made("1"), {}, {})
    chat(saver).invoke(said("hello"), T)
    read = saver.get_tuple(T)
    assert read
    for thread_id, config in (("first", first), ("t", read.config)):
        saver.delete_thread(thread_id)
        for task in ("one", "two"):
            with pytest.raises(CheckpointNotFoundError):
                saver.put_writes(config, [("messages", "a")], task)
    assert opened[-1].spaces("t") == opened[-1].spaces("first") == []
    assert saver.get_tuple(first) is None
    saver.put_writes(first, [("messages", "a")], "of a new run, before its first checkpoint")


def test_pruning_leaves_what_writes_for_a_later_checkpoint_share(saver: TurnwiseSaver) -> None:
    old, new = ([f"{word} {number}" * 20 for number in range(9)] for word in ("old", "new"))
    newer: Any = made("2", texts=new) | {"channel_versions": {"texts": "2"}}
    first = saver.put(T, made("1", texts=old), {}, {"texts": "1"})
    second = saver.put(first, newer, {}, {"texts": "2"})
    later: Any = {"configurable": {**second["configurable"], "checkpoint_id": "f3"}}
    saver.put_writes(later, [("texts", old)], "task")
    saver.prune(["t"])
    saver.put(second, newer | {"id": "f3"}, {}, {})
    read = saver.get_tuple(later)
    assert read and read.pending_writes == [("task", "texts", old)]
    assert [checkpoint.checkpoint["id"] for checkpoint in saver.list(T)] == ["f3", "f2"]


def test_a_run_does_not_write_to_a_thread_made_anew(saver: TurnwiseSaver) -> None:
    chat(saver).invoke(said("hello"), T)
    read = saver.get_tuple(T)
    assert read
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    saver.copy_thread("copy", "t")
    with pytest.raises(CheckpointNotFoundError):
        saver.put_writes(read.config, [("messages", "a")], "task")
    with pytest.raises(CheckpointNotFoundError):
        saver.put(read.config, made("2"), {}, {})
    assert latest(chat(saver)) == ["hello", "re hello"]


def test_a_process_accepts_writes_to_the_successor_of_a_deleted_thread(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    with TurnwiseSaver(url) as first, TurnwiseSaver(url) as two:
        chat(first).invoke(said("hello"), T)
        old = two.get_tuple(T)
        two.delete_thread("t")
        chat(two).invoke(said("again"), T)
        new = two.get_tuple(T)
        assert old and new
        for task in ("one", "two"):
            with pytest.raises(CheckpointNotFoundError):
                first.put_writes(old.config, [("messages", "a")], task)
            first.put_writes(new.config, [("messages", "b")], task)
            with pytest.raises(CheckpointNotFoundError):
                first.put_writes(old.config, [("messages", "c")], task)
        checkpoint = two.get_tuple(T)
        assert checkpoint and checkpoint.pending_writes == [("one", "messages", "b"), ("two", "messages", "b")]


def test_after_a_store_was_restored_a_run_from_before_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    with (
        TurnwiseSaver(url) as first,
        TurnwiseSaver(url) as two,
        closing(sqlite3.connect(tmp_path / "threads.db")) as database,
    ):
        chat(first).invoke(said("hello"), T)
        stored = database.execute("SELECT revision, state FROM turnwise_langgraph_spaces").fetchone()
        before = first.get_tuple(T)
        assert before
        first.put_writes(before.config, [("messages", "a")], "task")
        database.execute("UPDATE turnwise_langgraph_spaces SET revision = ?, state = ?", stored)
        database.execute("DELETE FROM turnwise_langgraph_writes")
        database.commit()
        after = two.get_tuple(T)
        assert after
        two.put_writes(after.config, [("messages", "b")], "task")
        with pytest.raises(CheckpointFencedError):
            first.put(before.config, made("2"), {}, {})


KILLED = """
import sys
from test_langgraph_saver import T, chat, said
from turnwise.adapters import TurnwiseSaver
app = chat(TurnwiseSaver(sys.argv[1]))
number = 0
while True:
    app.invoke(said("q" * 2000), T)
    print(number := number + 1, flush=True)
"""


@pytest.mark.by_turns
def test_after_a_kill_each_acknowledged_checkpoint_is_there_and_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    with subprocess.Popen([sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        line = [child.stdout.readline() for _ in range(4)][-1]
        child.send_signal(signal.SIGKILL)
    with TurnwiseSaver(url) as saver:
        app = chat(saver)
        assert len(latest(app)) >= 2 * int(line)
        states = [len(checkpoint.checkpoint["channel_values"].get("messages", ())) for checkpoint in saver.list(T)]
        assert states == sorted(states, reverse=True)
        app.invoke(said("on"), T)
        assert latest(app)[-2:] == ["on", "re on"]
        assert set(children(saver).values()) == {1}


def say(url: str, name: str, turns: int, begin: Callable[[], object]) -> None:
    """Have so many turns in a thread that another process writes to, too; repeat those that are refused."""
    with TurnwiseSaver(url) as saver:
        app, number = chat(saver), 0
        begin()
        while number < turns:
            with suppress(CheckpointFencedError):
                app.invoke(said(f"{name}{number}"), T)
                number += 1


RIVAL = """
import sys
from test_langgraph_saver import say
say(sys.argv[1], "a", int(sys.argv[2]), lambda: print("ready", flush=True) or sys.stdin.readline())
"""


@pytest.mark.by_turns
def test_two_processes_that_repeat_what_was_refused_lose_nothing_and_fork_nothing(tmp_path: Path) -> None:
    url, turns = f"sqlite:///{tmp_path}/threads.db", scale.share(100, 10)
    command = [sys.executable, "-c", RIVAL, url, str(turns)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rival:

        def go() -> None:
            assert rival.stdin and rival.stdout and rival.stdout.readline() == "ready\n"
            rival.stdin.write("go\n")
            rival.stdin.flush()

        say(url, "b", turns, go)
    assert rival.returncode == 0
    with TurnwiseSaver(url) as saver:
        assert set(children(saver).values()) == {1}
        texts = list(dict.fromkeys(latest(chat(saver))))
        for name in "ab":
            assert [text for text in texts if text.startswith(name)] == [f"{name}{number}" for number in range(turns)]


def test_a_saver_pickles_unless_it_is_in_memory(tmp_path: Path, quick: TurnwiseSaver) -> None:
    with TurnwiseSaver(f"sqlite:///{tmp_path}/threads.db") as saver:
        chat(saver).invoke(said("hello"), T)
        with pickle.loads(pickle.dumps(saver)) as again:
            assert latest(chat(again)) == ["hello", "re hello"]
    with pytest.raises(StoreClosedError):
        saver.get_tuple(T)
    with pytest.raises(TypeError, match="lives in its process"):
        pickle.dumps(quick)


def test_a_copy_with_an_allowlist_of_types_shares_the_savers_connections(quick: TurnwiseSaver) -> None:
    """LangGraph makes one for each run with LANGGRAPH_STRICT_MSGPACK=true."""
    strict = TurnwiseSaver.with_allowlist(quick, ())
    assert strict is quick, "all types are allowed"
    quick.serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    strict = quick.with_allowlist({(AIMessage.__module__, "Own")})
    assert strict is not quick and strict.serde is not quick.serde
    chat(strict).invoke(said("hello"), T)
    assert latest(chat(quick)) == ["hello", "re hello"]
    quick.close()
    with pytest.raises(StoreClosedError):
        strict.get_tuple(T)


def test_bad_input_is_refused_with_an_error_that_says_what_to_do(quick: TurnwiseSaver) -> None:
    with pytest.raises(StoreURLError):
        TurnwiseSaver("mysql://localhost/x")
    with pytest.raises(ConfigError, match="thread_id"):
        quick.get_tuple({"configurable": {}})
    with pytest.raises(InvalidIdError):
        quick.get_tuple({"configurable": {"thread_id": "a\0b"}})
    with pytest.raises(ConfigError, match="checkpoint_id"):
        quick.put_writes(T, [("a", 1)], "task")
    with pytest.raises(ConfigError, match="strategy"):
        quick.prune(["t"], strategy="all")
    with pytest.raises(ThreadNotFoundError, match="no thread 'nobody'"):
        quick.copy_thread("nobody", "copy")
    app = chat(quick)
    app.invoke(said("hello"), {"configurable": {"thread_id": 7}})
    assert latest(app, {"configurable": {"thread_id": "7"}}) == ["hello", "re hello"]
    with pytest.raises(ThreadExistsError, match="'7' exists"):
        quick.copy_thread("7", "7")
    unknown: Any = {"configurable": {"thread_id": "7", "checkpoint_id": "unknown"}}
    assert quick.get_tuple(unknown) is None
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 'unknown'"):
        app.invoke(said("hello"), unknown)


def test_a_checkpoint_whose_elements_are_missing_is_corrupt(tmp_path: Path) -> None:
    from turnwise.adapters.langgraph.checkpoints_sql import elements

    url = f"sqlite:///{tmp_path}/threads.db"
    with TurnwiseSaver(url) as saver:
        chat(saver).invoke(said("hello"), T)
    with connected(url) as connection:
        assert connection.execute(sa.delete(elements)).rowcount
    with TurnwiseSaver(url) as saver, pytest.raises(CorruptRecordError, match="elements are missing"):
        saver.get_tuple(T)


def made(name: str, **values: Any) -> Any:
    """Return a checkpoint with these channels."""
    versions = dict.fromkeys(values, "1")
    return {**empty_checkpoint(), "id": f"f{name}", "channel_values": values, "channel_versions": versions}


def by_hand(config: Any) -> Any:
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return {"configurable": {name: config["configurable"][name] for name in names}}


def parent_of(config: str) -> str:
    """Return a parent's config without what differs from one reading to the next."""
    return config.partition("'__turnwise")[0]
