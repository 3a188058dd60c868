"""What engines, settings and memories are recognised by."""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, PrivateAttr
from ray import cloudpickle

from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting.identity import identity
from turnwise.actors.hosting.memory.remote_memory import RemoteMemory
from turnwise.actors.hosting.placement import Dedicated
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, tool
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.trim import Trim


@dataclass(frozen=True)
class Settings:
    name: str = "a name"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherSettings(Settings):
    pass


class Plain:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def build(self, session: object) -> Any:
        return self


class Model(BaseModel):
    limit: int = 3
    names: list[str] = []
    _secret: str = PrivateAttr("first")

    def hide(self, secret: str) -> None:
        self._secret = secret


def test_equal_settings_are_one_engine_though_their_pickles_differ() -> None:
    same, equal = str(10**20), str(10**20)
    once, again = Settings(options={"a": same, "b": same}), Settings(options={"b": equal, "a": same})
    assert once == again and cloudpickle.dumps(once) != cloudpickle.dumps(again)
    assert identity(once) == identity(again)


def test_other_settings_or_another_class_are_another_engine() -> None:
    engines = [
        *(Settings(), Settings("another"), Settings(options={"a": 1}), Settings(options={"a": 1.0})),
        *(OtherSettings(), Plain(a=1), Plain(a=[1]), Plain(a=(1,)), Plain(a={1}), Plain(b=1)),
        *(Model(), Model(limit=4), EchoEngine(), Trim(), SessionConfig(), SessionConfig(idle_s=7.0)),
        *(re.compile("a"), re.compile("b"), functools.partial(max, 1), functools.partial(max, 2), "a".join, "b".join),
    ]
    assert len({*map(identity, engines)}) == len(engines)


def test_a_model_counts_by_its_values_whether_they_were_passed_or_are_defaults() -> None:
    secret = Model()
    secret.hide("second")
    assert identity(Model()) == identity(Model(limit=3)) != identity(secret)


def test_what_a_subclass_of_a_dataclass_holds_beside_its_fields_counts() -> None:
    first, second = OtherSettings(), OtherSettings()
    vars(second)["more"] = "than fields"
    assert first == second and identity(first) != identity(second)


def of_source(source: str, **names: Any) -> FunctionType:
    """Return the function `f` of a script's source."""
    scope: dict[str, Any] = {"__name__": "__main__", **names}
    exec(textwrap.dedent(source), scope)
    function: FunctionType = scope["f"]
    return function


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return x + 2",
        "def f(x, y=1): return x + 1",
        "def f(x): return [x + each for each in (1, 2)]",
        "helper = 2\ndef f(x): return x + helper",
        "helper = 3\ndef f(x): return x + helper",
        "def outer(n):\n  def f(x): return x + n\n  return f\nf = outer(1)",
        "def outer(n):\n  def f(x): return x + n\n  return f\nf = outer(2)",
        "def f(x): return f(x - 1) if x else 0",
    ],
)
def test_a_function_of_a_script_counts_by_its_code_and_what_that_uses(source: str) -> None:
    moved = "# a comment\n\n\n" + source
    assert identity(of_source(source)) == identity(of_source(moved))
    plain = of_source("def f(x): return x + 1")
    assert identity(of_source(source)) != identity(plain)


def a_tool(answer: str) -> Tool:
    return tool(of_source(f"def f(x: int) -> int:\n  'Does it.'\n  return {answer}"))


def test_a_tool_of_a_script_counts_by_its_function() -> None:
    assert identity(a_tool("x")) == identity(a_tool("x")) != identity(a_tool("x + 1"))


def test_a_global_that_a_function_does_not_use_does_not_count() -> None:
    source = "def f(x): return x.helper"
    assert identity(of_source(source, helper=1)) == identity(of_source(source, helper=object()))


def test_a_name_that_a_user_sets_wins() -> None:
    plain = Plain(engine_name="support-3", options=1)
    assert identity(plain) == identity(Plain(engine_name="support-3", options=2))
    assert identity(plain) != identity(Plain(engine_name="support-4", options=1))
    assert identity(Plain(engine_name="")) != identity(Plain(engine_name="", options=1)), "an empty one is none"


def test_what_cannot_be_taken_apart_counts_by_its_pickle() -> None:
    first, second = {1: 2}, {1: 3}
    assert identity(first.keys()) == identity({1: 2}.keys())
    assert identity(first.values()) != identity(second.values())
    with pytest.raises(TypeError):
        identity(threading.Lock())


_SCRIPT = """
import dataclasses
from ray import cloudpickle
from turnwise import EchoEngine, OpenAIEngine, tool
from turnwise.engines import ToolRegistry
from turnwise.actors.cluster.actors.memory_actor import MemoryActorProcess
from turnwise.actors.hosting.identity import identity

LIMITS = {"b", "a", "c", "d", "e"}

@dataclasses.dataclass
class Engine:
    names: set = dataclasses.field(default_factory=lambda: set(LIMITS))
    def build(self, session):
        return EchoEngine().build(session) if LIMITS else None

@tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b

agent = OpenAIEngine("model", api_key="key", tools=ToolRegistry(add))
print(identity((Engine(), agent)), len(cloudpickle.dumps(Engine())))
"""


@pytest.mark.by_turns
def test_an_engine_of_a_script_is_the_same_in_each_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    outputs = [
        subprocess.run(
            [sys.executable, script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0].split()[0]) == 64


def a_realm(**changes: Any) -> SessionsClient:
    settings: dict[str, Any] = {
        "history_store": None,
        "encryption": None,
        "engine": OpenAIEngine("gpt-4o", api_key="key", tools=ToolRegistry(a_tool("x"))),
        "overflow": Trim(),
        "memory": [StaticMemory(["a", "b"])],
        "working_memory": None,
        "placement": Dedicated(),
        "config": SessionConfig(),
        "read_only": False,
        **changes,
    }
    return SessionsClient.of("namespace", "memory://identity", **settings)


def test_two_managers_with_equal_settings_have_one_engine_and_share_their_memories() -> None:
    first, another = a_realm(), a_realm()
    assert first.setup_id == another.setup_id
    first_ids, other_ids = ([slot.memory.process.id for slot in client.memories] for client in (first, another))  # type: ignore[attr-defined]
    assert first_ids == other_ids != []


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": OpenAIEngine("gpt-4o", api_key="key")},
        {"config": SessionConfig(idle_s=7.0)},
        {"overflow": DeleteOldest()},
        {"memory": [StaticMemory(["a", "c"])]},
        {"memory": []},
        {"working_memory": WorkingMemory(SQLItems("sqlite:///notes.db", space="notes"))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_all_that_runs_work_with_counts(changes: dict[str, Any]) -> None:
    assert a_realm().setup_id != a_realm(**changes).setup_id


def test_a_memory_that_was_sent_to_another_process_is_the_same() -> None:
    settings = StaticMemory(["a"])
    memory = RemoteMemory(settings, MemoryActorProcess(settings, "namespace"))
    assert identity(cloudpickle.loads(cloudpickle.dumps(memory))) == identity(memory)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


def shuffled(value: Any, dice: random.Random) -> Any:
    """Return an equal copy of a value, with another order in its mappings."""
    if isinstance(value, dict):
        items = list(value.items())
        dice.shuffle(items)
        return {key: shuffled(item, dice) for key, item in items}
    if isinstance(value, list | tuple):
        return type(value)(shuffled(item, dice) for item in value)
    return value


@given(_values, st.integers())
def test_the_order_in_mappings_does_not_count(value: Any, seed: int) -> None:
    assert identity(value) == identity(shuffled(value, random.Random(seed)))


@given(_values, _values)
def test_different_values_are_different(first: Any, second: Any) -> None:
    if repr(shuffled(first, random.Random(1))) != repr(shuffled(second, random.Random(1))) and first != second:
        assert identity(first) != identity(second)
