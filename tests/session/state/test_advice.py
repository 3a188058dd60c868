"""The remedies that errors name can be applied."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnwise import (
    AsyncSessionManager,
    Encryption,
    ExtractiveMemory,
    LexicalMemory,
    OpenAIEngine,
    SessionManager,
    StaticMemory,
    Summarize,
)
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.openai.engine import AzureOpenAI
from turnwise.actors.session.core import SessionCore
from turnwise.adapters import AgentsSDKEngine, LangGraphEngine, PydanticAIEngine
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.errors import EmptyTurnError, MissingArgumentError, SessionBusyError, SessionInUseError, TurnwiseError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.providers.message_reading import read_messages
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.working.memory import WorkingMemory
from turnwise.testing.schedules import inline
from turnwise.testing.scripted_engine import Pause, ScriptedEngine


async def opened() -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    engine = ScriptedEngine([["one ", Pause(5.0), "two"]], repeat=True)
    return SessionCore(SessionKey("s"), store, engine, off_loop=inline)


@pytest.mark.virtual_time
async def test_of_many_starts_of_one_prompt_all_but_one_find_the_session_busy() -> None:
    core = await opened()
    await core.admission.append(["prompt"], key="key")
    starts = [core.admission.start([], run_id=f"run{number}") for number in range(12)]
    answers = await asyncio.gather(*starts, return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Started", *["SessionBusyError"] * 11]
    dropped = await core.admission.start([], run_id="dropped", if_busy="drop")
    assert dropped.dropped and dropped.run_id == "run0"
    with pytest.raises(EmptyTurnError):
        await core.admission.start([], run_id="empty", if_busy="enqueue")
    await core.reads.wait("run0")
    with pytest.raises(EmptyTurnError):
        await core.admission.start([], run_id="empty")


@pytest.mark.virtual_time
async def test_a_verb_without_a_policy_does_not_advise_one() -> None:
    core = await opened()
    await core.admission.start(["prompt"], run_id="first")
    await core.reads.wait("first")
    turn = (await core.reads.turns())[0]
    await core.admission.start(["prompt"], run_id="run")
    conversation = read_messages([{"role": "user", "content": "old"}, {"role": "assistant", "content": "long ago"}])
    calls: list[Any] = [
        core.forgetting.delete(),
        core.forgetting.clear(key="clear"),
        core.forgetting.forget_turn(0),
        core.removals.remove(0, turn.record.prompt, "remove"),
        core.importing.import_turns(conversation),
    ]
    for call in calls:
        with pytest.raises(SessionInUseError) as refused:
            await call
        assert isinstance(refused.value, SessionBusyError) and refused.value.run_id == "run"
        assert "if_busy" not in str(refused.value) and "'run'" in str(refused.value)
    with pytest.raises(SessionBusyError, match="if_busy='enqueue'") as busy:
        await core.admission.start(["prompt"], run_id="another")
    assert not isinstance(busy.value, SessionInUseError)
    await core.admission.cancel("stop")


def test_no_append_is_advised_to_one_who_appends() -> None:
    assert "append" not in str(EmptyTurnError("s"))


@pytest.mark.parametrize("manager", [SessionManager, AsyncSessionManager])
def test_a_manager_without_an_engine_says_which_to_pass(manager: Any) -> None:
    with pytest.raises(MissingArgumentError, match=r"engine=OpenAIEngine\(.*EchoEngine\(\)") as missing:
        manager("memory://")
    assert isinstance(missing.value, TurnwiseError) and isinstance(missing.value, TypeError)
    assert missing.value.argument == "engine"


REQUIRED: dict[str, Any] = {
    "model": OpenAIEngine,
    "function": FunctionEngine,
    "script": ScriptedEngine,
    "items": LexicalMemory,
    "key": Encryption,
}


@pytest.mark.parametrize("argument", REQUIRED)
def test_what_lacks_a_required_argument_says_what_to_pass(argument: str) -> None:
    with pytest.raises(
        MissingArgumentError, match=f"missing a required argument, '{argument}': (pass|name) "
    ) as missing:
        REQUIRED[argument]()
    assert missing.value.of == f"{REQUIRED[argument].__name__}()"


ENGINES = (AnthropicEngine, AgentsSDKEngine, LangGraphEngine, PydanticAIEngine, AzureOpenAI)
MEMORIES = (StaticMemory, ExtractiveMemory, WorkingMemory, Summarize)
STORES = (RedisItems, SQLItems)


@pytest.mark.parametrize("kind", [*ENGINES, *MEMORIES, *STORES])
def test_other_classes_name_themselves_when_an_argument_is_missing(kind: Any) -> None:
    with pytest.raises(MissingArgumentError) as missing:
        kind()
    assert missing.value.of == f"{kind.__name__}()"
