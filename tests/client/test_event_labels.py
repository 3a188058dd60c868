"""Labels and the caller's id of the turn on events: stored with them, filtered by, and kept after a run's end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from patience import within
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import InvalidInputError, SessionEndedError
from turnwise.memory.conversation.events import AnyEvent, CustomEvent
from turnwise.memory.conversation.turns import Turn

MakeManager = Callable[..., SessionManager]

WEB: Mapping[str, str] = {"source": "web"}
FORGED: Mapping[str, str] = {"from_session": "bob"}

until = within(60.0)


def search(turn: Turn, context: Any) -> Iterator[str]:
    context.event("looked", labels={"shelf": "7"})
    with context.step("read"):
        yield "two words"


@pytest.fixture
def manager(make_manager: MakeManager) -> SessionManager:
    return make_manager(engine=FunctionEngine(search))


def labelled(event: AnyEvent) -> tuple[str, Mapping[str, str]]:
    return event.name if isinstance(event, CustomEvent) else event.kind, event.labels


@pytest.mark.parametrize("keeps_events", [False, True])
def test_all_events_of_a_turn_have_its_id_and_its_runs_labels(
    make_manager: MakeManager, tmp_path: Path, *, keeps_events: bool
) -> None:
    history = {"history_store": f"sqlite:///{tmp_path}/events.db"} if keeps_events else {}
    manager = make_manager(engine=FunctionEngine(search), **history)
    chat = manager.open("chat")
    run = chat.run("hello", turn_id="greeting", labels=WEB)
    run.wait()
    chat.mark(chat.messages()[-1], "thumb", "up")
    chat.remove(chat.messages()[-1])
    other = chat.run("again")
    other.wait()
    live = chat.events()
    assert {event.turn_id for event in live if event.turn_index == 0} == {"greeting"}
    assert {event.turn_id for event in live if event.turn_index == 1} == {None}
    of_run = [event for event in live if event.run_id == run.run_id]
    assert {"text_delta", "step_started", "run_completed"} < {event.kind for event in of_run}
    for event in of_run:
        own = {"shelf": "7"} if isinstance(event, CustomEvent) else {}
        assert event.labels == {**WEB, **own}, event
    assert not any(
        event.labels for event in live if event.run_id == other.run_id and not isinstance(event, CustomEvent)
    )
    phases = [event for event in run.events(phases=True) if event.kind == "phase_changed"]
    assert {(event.turn_id, event.labels == WEB) for event in phases} == {("greeting", True)}
    manager.close()
    stored = make_manager(engine=FunctionEngine(search), **history).get("chat").events()
    assert stored == [event for event in live if not type(event).live]
    for event in stored:
        read: AnyEvent = TypeAdapter(AnyEvent).validate_json(event.model_dump_json())
        assert read == event and ("labels" in event.model_dump_json()) == bool(event.labels)


def test_events_are_found_by_labels(manager: SessionManager) -> None:
    chat = manager.open("chat")
    for labels in (WEB, {"source": "mail", "tenant": "a"}, None):
        chat.run("hello", labels=labels).wait()
    chat.add_event("noted", labels={"tenant": "a"})
    assert {event.turn_index for event in chat.events(labels=WEB)} == {0}
    assert {event.turn_index for event in chat.events(labels={"tenant": "a"})} == {1, None}
    assert [labelled(event) for event in chat.events(kinds=["custom"], labels={"shelf": "7", "source": "mail"})] == [
        ("looked", {"source": "mail", "tenant": "a", "shelf": "7"})
    ]
    assert chat.events(labels={"source": "fax"}) == []
    assert len(chat.events(labels={})) == len(chat.events())
    assert [run.labels for run in manager.runs(labels={"source": "mail"})] == [{"source": "mail", "tenant": "a"}]
    assert len(manager.runs(labels={})) == 3


def test_a_subscription_gets_the_events_with_its_labels(manager: SessionManager) -> None:
    chat = manager.open("chat")
    seen: list[tuple[str, Mapping[str, str]]] = []
    done = threading.Event()

    def note(event: AnyEvent) -> None:
        seen.append(labelled(event))
        if seen[-1][0] == "last":
            done.set()

    with manager.subscribe(note, kinds=["custom"], labels=WEB):
        chat.run("hello").wait()
        chat.run("hello", labels=WEB).wait()
        chat.add_event("last", labels=WEB)
        assert done.wait(60)
    assert seen == [("looked", {**WEB, "shelf": "7"}), ("last", WEB)]


def test_an_event_may_be_added_after_the_end_of_its_run(manager: SessionManager) -> None:
    chat = manager.open("chat")
    run = chat.run("hello", labels=WEB, turn_id="greeting")
    run.wait()
    chat.run("another").wait()
    before = list(run.events())
    seq = run.add_event("rated", {"stars": 5}, labels={"by": "ann", "source": "app"})
    (late,) = run.events(after=before[-1].seq)
    assert isinstance(late, CustomEvent) and (late.seq, late.name, late.data) == (seq, "rated", {"stars": 5})
    assert (late.run_id, late.turn_index, late.turn_id) == (run.run_id, 0, "greeting")
    assert late.labels == {"source": "app", "by": "ann"}
    assert list(run.events()) == before, "those who follow a run stop at its end"
    assert run.steps() and run.phase() == "completed"
    assert late in chat.events(kinds=["custom"])
    chat.end()
    with pytest.raises(SessionEndedError):
        run.add_event("rated")


def test_labels_of_an_event_are_checked(make_manager: MakeManager) -> None:
    manager = make_manager(config=SessionConfig(max_labels=1, max_label_chars=4))
    chat = manager.open("chat")
    wrong: list[Any] = [{"a": 1}, "a", {"a": "b", "c": "d"}, {"a": "12345"}, {"from_session": "bob"}]
    for labels in wrong:
        with pytest.raises(InvalidInputError, match="labels"):
            chat.add_event("noted", labels=labels)
    assert chat.events() == []


def test_a_caller_cannot_pass_for_a_session(make_manager: MakeManager) -> None:
    def forge(turn: Turn, context: Any) -> Iterator[str]:
        with pytest.raises(InvalidInputError, match="reserved"):
            context.event("looked", labels=FORGED)
        yield "done"

    manager = make_manager(engine=FunctionEngine(forge))
    chat = manager.open("chat")
    chat.append("hello")
    run = chat.run("hello", labels=WEB)
    run.wait()
    chat.schedule("later", after_s=1_000, key="news")
    forgeries: list[Callable[[], object]] = [
        lambda: chat.run("hello", labels=FORGED),
        lambda: chat.start(labels=FORGED),
        lambda: chat.rerun(labels=FORGED),
        lambda: chat.schedule("hello", after_s=1_000, labels=FORGED),
        lambda: chat.change_schedule("news", labels=FORGED),
        lambda: manager.run_once("hello", labels=FORGED),
        lambda: chat.add_event("noted", labels=FORGED),
        lambda: run.add_event("noted", labels=FORGED),
    ]
    for forgery in forgeries:
        with pytest.raises(InvalidInputError, match="'from_session' is reserved for messages between sessions: use"):
            forgery()
    assert [run.labels for run in chat.runs()] == [WEB]
    assert chat.events(labels=FORGED) == []


def test_messages_of_a_session_are_found_by_the_reserved_label(manager: SessionManager) -> None:
    chat = manager.open("chat")
    manager.open("bob").send("chat", "hello")
    until(lambda: [run.state for run in manager.runs(labels=FORGED)] == ["completed"])
    assert {event.run_id for event in chat.events(labels=FORGED)} == {chat.runs()[0].run_id}
