"""The fixtures of `turnwise.testing.pytest_plugin`, in the way programs use them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnwise import AsyncSessionManager, SessionManager
from turnwise.errors import ConfigError, RunFailedError, StoreError
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.testing import FaultPlan, Faults, FaultyEngine
from turnwise.testing.fixtures.frozen_clock import NEW_YEAR, FrozenClock
from turnwise.testing.fixtures.make_manager import MakeManager
from turnwise.testing.scripted_engine import RecordingEngine

pytest_plugins = ["turnwise.testing.pytest_plugin"]

HOUR_S = 3600.0


def test_a_manager_echoes_without_an_engine(turnwise_manager: MakeManager[SessionManager]) -> None:
    assert turnwise_manager().open().run("hello").wait().text == "hello"


async def test_a_manager_with_coroutines_is_closed_after_the_test(
    async_turnwise_manager: MakeManager[AsyncSessionManager],
) -> None:
    chat = await async_turnwise_manager().open()
    assert (await (await chat.run("hello")).wait()).text == "hello"


async def test_managers_of_a_test_share_its_store(
    turnwise_manager: MakeManager[SessionManager], async_turnwise_manager: MakeManager[AsyncSessionManager]
) -> None:
    turnwise_manager().open("chat")
    assert (await async_turnwise_manager().get("chat")).session_id == "chat"


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_a_store_of_its_own(number: int, turnwise_manager: MakeManager[SessionManager]) -> None:
    manager = turnwise_manager()
    assert not manager.list()
    manager.open("chat")


def test_a_scripted_engine_records_what_it_is_given(
    turnwise_manager: MakeManager[SessionManager], scripted_engine: type[RecordingEngine]
) -> None:
    engine = scripted_engine(["One.", "Two."])
    chat = turnwise_manager(engine).open()
    chat.run("first").wait()
    assert chat.run("second").wait().text == "Two."
    assert [[getattr(block, "text", None) for block in turn.blocks] for turn in engine.calls] == [
        ["first"],
        ["first", "One.", "second"],
    ]


def test_a_session_expires_when_the_test_says_so(
    turnwise_manager: MakeManager[SessionManager], frozen_clock: FrozenClock
) -> None:
    manager = turnwise_manager()
    used, idle = (manager.open(name, ttl_s=HOUR_S) for name in ("used", "idle"))
    assert used.info().session.created_at == NEW_YEAR
    used.run("hello").wait(), idle.run("hello").wait()
    frozen_clock.advance(HOUR_S * 0.75)
    assert used.run("hello").wait().created_at == NEW_YEAR + HOUR_S * 0.75
    frozen_clock.advance(HOUR_S * 0.75)
    assert [key.session_id for key in manager.sweep().deleted] == ["idle"]
    frozen_clock.advance(HOUR_S)
    assert [key.session_id for key in manager.sweep().deleted] == ["used"]
    assert manager.open("later").info().session.created_at == frozen_clock.now


def test_a_memory_may_have_the_clock_of_the_test(
    turnwise_manager: MakeManager[SessionManager], frozen_clock: FrozenClock, tmp_path: Path
) -> None:
    memory = LexicalMemory(tmp_path / "facts.db", clock=frozen_clock)
    chat = turnwise_manager(memory=[memory]).open(user_id="ada")
    frozen_clock.advance(HOUR_S)
    chat.run("The heron stands in the reeds.").wait()
    chat.memory.wait()
    assert [item.created_at for item in chat.memory.recall("heron")] == [NEW_YEAR + HOUR_S]


def test_a_store_fails_as_the_test_plans(
    turnwise_manager: MakeManager[SessionManager], turnwise_faults: Faults
) -> None:
    manager = turnwise_manager()
    manager.open("chat")
    turnwise_faults.plan = FaultPlan(rates={"error": 1.0}, points=("store.query before",))
    with pytest.raises(StoreError, match=r"injected at store\.query"):
        manager.list()
    turnwise_faults.plan = FaultPlan(rates={"unanswered": 1.0}, points=("store.commit after",), limit=2)
    with pytest.raises(StoreError, match="it is stored, and its answer is lost"):
        manager.get("chat").run("hello", idempotency_key="mine")
    assert manager.get("chat").run("hello", idempotency_key="mine").wait().text == "hello"
    assert turnwise_faults.struck == {"error store.query before": 1, "unanswered store.commit after": 1}
    assert [turn.text for turn in manager.get("chat").turns()] == ["hello"], "it was not run twice"


def test_an_engine_fails_as_the_test_plans(
    turnwise_manager: MakeManager[SessionManager], turnwise_faults: Faults
) -> None:
    chat = turnwise_manager(FaultyEngine(turnwise_faults, word_s=0)).open()
    turnwise_faults.plan = FaultPlan(rates={"cut": 1.0}, points=("engine.*",), limit=1)
    with pytest.raises(RunFailedError) as failed:
        chat.run("hello").wait()
    assert failed.value.turn and "answer to" in failed.value.turn.text
    assert chat.run("again").wait().text == "answer to again"


def test_a_day_later_the_reminder_has_begun_its_run(
    turnwise_manager: MakeManager[SessionManager], frozen_clock: FrozenClock
) -> None:
    chat = turnwise_manager().open("chat")
    chat.schedule("water the plants", after_s=86_400.0, key="plants")
    frozen_clock.advance(86_399.0)
    time.sleep(0.3)
    assert not chat.runs()
    frozen_clock.advance(1.0)
    started = time.monotonic()
    while not (runs := chat.runs()):
        assert time.monotonic() < started + 10.0, "nobody has woken the dispatcher"
        time.sleep(0.01)
    assert runs[0].created_at == frozen_clock.now
    chat.execution(runs[0].run_id).wait()


def test_time_does_not_run_backwards(frozen_clock: FrozenClock) -> None:
    with pytest.raises(ConfigError, match="backwards"):
        frozen_clock.advance(-1)


def test_to_name_the_plugin_imports_next_to_nothing() -> None:
    script = """
import sys, pytest
before = set(sys.modules)
import turnwise.testing.pytest_plugin
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("turnwise.testing")))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) <= {"turnwise", "turnwise._exports", "__future__"}, ran.stdout
