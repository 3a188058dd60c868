"""What verbs make of arguments of the wrong type, size and range: all of them, in both families."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic_core.core_schema import CoreSchema, any_schema

from engines import ScriptedEngine
from scale import share
from turnwise.actors.client import session_memory
from turnwise.actors.client.blocking import session_memory as blocking_session_memory
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.blocking.session import Session
from turnwise.actors.client.blocking.session_host import SessionHost
from turnwise.actors.client.blocking.session_memory import SessionMemory
from turnwise.actors.client.blocking.subscriptions import Subscription
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.session_memory import AsyncSessionMemory
from turnwise.actors.client.shared import arguments as inputs, provided_result
from turnwise.actors.client.shared.portal import Portal
from turnwise.actors.client.shared.run_options import LaterRunOptions, RerunOptions, RunOptions
from turnwise.actors.client.subscriptions import AsyncSubscription
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import SessionRef
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import (
    EngineError,
    InvalidInputError,
    InvalidPromptError,
    LongTermMemoryError,
    RunCancelledError,
    RunFailedError,
    SessionLostError,
    StoreError,
    TurnwiseError,
    shown,
)
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import Summary, Unknown, User
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.longterm.base import ItemChanges
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.memory.longterm.items.redis import RedisItems
from turnwise.memory.longterm.items.sql import SQLItems
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.retention.about import About, Mention
from turnwise.memory.quotas.records import Quota
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import new_id
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim

PORTAL = Portal()
"""The event loop of the asynchronous family."""

SESSION, USER, RUN = "chat", "ann", "run"
REF = SessionRef(SessionKey(SESSION, USER))

FAMILIES = (
    *(SessionManager, AsyncSessionManager, Session, AsyncSession),
    *(ExecutionHandle, AsyncExecutionHandle, SessionMemory, AsyncSessionMemory),
)

VALID: dict[str, Any] = {
    "session_id": SESSION,
    "user_id": USER,
    "run_id": RUN,
    "call_id": "call",
    "index": 0,
    "turn_index": 0,
    "use": "on",
    "text": "Ann has a boat.",
    "query": "boat",
    "id": "item",
    "ids": "item",
    "content": "notes",
    "result": "done",
    "summary": Summary(text="of nothing"),
    "prompts": "hello",
    "what": Turn(SESSION, TurnRecord(index=0, prompt=(Span("1", 0, 1),)), BlockCache()),
    "blocks": 0,
    "on_event": print,
    "name": "progress",
    "messages": [{"role": "user", "content": "hello"}],
    "format": "openai_chat",
    "key": "reminder",
    "url": "https://a.example/hook",
    "events": ["run.failed"],
    "to_session": SESSION,
    "message": f"{SESSION}#0:0",
    "value": 1,
    "quota": Quota(runs=1),
    "quota_id": Quota(runs=1).quota_id,
    "tenant": "acme",
}
"""For each parameter that has to be given, a value that its verb takes."""


ALSO: dict[str, dict[str, Any]] = {"schedule": {"after_s": 1e6}}
"""What a verb is given besides, since one of several parameters has to be given."""


def client_of(manager: Any) -> Any:
    return manager._client  # noqa: SLF001 - to make handles as pickles do


class World:
    """A session in this process with one run behind it, and what callers of both families hold of it."""

    def __init__(self, engine: EngineBuilder | None = None, **settings: Any) -> None:
        settings = {
            "store": f"memory://{new_id()}",
            "engine": engine or EchoEngine(),
            "memory": [LexicalMemory(InMemoryItems())],
            "working_memory": WorkingMemory(InMemoryItems()),
            "placement": InProcess(),
            **settings,
        }
        self.managers = SessionManager(**settings), AsyncSessionManager(**settings)
        self.managers[0].open(SESSION, user_id=USER)
        host = SessionHost(client_of(self.managers[0]), REF)
        host.wait(host.start(("hello",), {"run_id": RUN}).run_id, None, "ended")
        self.subject(Session).schedule("later", **ALSO["schedule"], key=VALID["key"])
        self.verbs: list[str] = []
        """What the session was asked for."""
        for manager in self.managers:
            self._note_verbs(client_of(manager))
        self.subjects: dict[Any, Any] = {}

    def _note_verbs(self, client: Any) -> None:
        pack = client.pack

        def noting(ref: SessionRef, call: VerbCall[Any], **options: Any) -> bytes:
            self.verbs.append(call.verb.name)
            packed: bytes = pack(ref, call, **options)
            return packed

        client.pack = noting

    def close(self) -> None:
        blocking, asynchronous = self.managers
        blocking.open(SESSION, user_id=USER).memory.wait()  # a session that saves leaves later
        blocking.close()
        PORTAL.run(asynchronous.close())

    def subject(self, family: Any) -> Any:
        manager = self.managers[family.__name__.startswith("Async")]
        if isinstance(manager, family):
            return manager
        if issubclass(family, SessionMemory | AsyncSessionMemory):
            return family(client_of(manager), REF)
        ids = (REF, None) if issubclass(family, Session | AsyncSession) else (REF, RUN, 0)
        return family(client_of(manager), *ids)

    def call(self, verb: Verb, **arguments: Any) -> Any:
        if verb.family not in self.subjects:
            self.subjects[verb.family] = self.subject(verb.family)
        return verb.call(self.subjects[verb.family], arguments)

    def check_that_it_works(self) -> None:
        assert self.run("still there?", if_busy="enqueue").text == "still there?"

    def run(self, prompt: str, **options: Any) -> Turn:
        run = self.subject(Session).run(prompt, **options)
        turn: Turn = run.wait(10)
        return turn


def parameters_of(options: type) -> list[inspect.Parameter]:
    """Return the parameters that `**options: Unpack[...]` of a verb stands for."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind.__forward_arg__, default=None)
        for name, kind in options.__annotations__.items()
    ]


OPTIONS = {
    f"Unpack[{options.__name__}]": parameters_of(options)
    for options in (ItemChanges, RunOptions, LaterRunOptions, RerunOptions)
}


MakeWorld = Callable[..., World]


class Verb:
    """A public verb of a class, by what its signature says."""

    def __init__(self, family: type, name: str) -> None:
        self.family = family
        self.name = name
        self.parameters = []
        for parameter in list(inspect.signature(getattr(family, name)).parameters.values())[1:]:
            self.parameters += (
                [parameter] if parameter.kind is not parameter.VAR_KEYWORD else OPTIONS[parameter.annotation]
            )

    def __str__(self) -> str:
        return f"{self.family.__name__}.{self.name}"

    def call(self, subject: Any, arguments: dict[str, Any]) -> Any:
        arguments = {**ALSO.get(self.name, {}), **arguments}
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name not in arguments and parameter.default is not parameter.empty:
                continue
            value = arguments.get(parameter.name, VALID.get(parameter.name))
            if parameter.kind is parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                positional.append(value)
            else:
                keywords[parameter.name] = value
        answer = getattr(subject, self.name)(*positional, **keywords)
        if isinstance(answer, AsyncGenerator):
            return PORTAL.run(_all(answer))
        if inspect.isawaitable(answer):
            answer = PORTAL.run(_awaited(answer))
        if isinstance(answer, Subscription | AsyncSubscription):
            closing = answer.close()
            return closing and PORTAL.run(_awaited(closing))
        return list(answer) if isinstance(answer, Generator) else answer


async def _awaited(answer: Any) -> Any:
    return await answer


async def _all(answer: AsyncGenerator[Any]) -> list[Any]:
    return [item async for item in answer]


VERBS = [
    Verb(family, name)
    for family in FAMILIES
    for name, method in inspect.getmembers(family, inspect.isfunction)
    if not name.startswith("_") and name != "close"
]
PARAMETERS = [
    pytest.param(verb, parameter, id=f"{verb}-{parameter.name}") for verb in VERBS for parameter in verb.parameters
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A world in which all is refused: it works as before at the end of the file."""
    world = World()
    yield world
    world.check_that_it_works()
    world.close()


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Makes worlds that end with the test."""
    worlds: list[World] = []

    def make(engine: EngineBuilder | None = None, **settings: Any) -> World:
        worlds.append(World(engine, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"a": value}
    return value


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = [value, value]
    return value


def doubled(depth: int) -> dict[str, Any]:
    """Return a value that is small in memory, and has 2**depth leaves."""
    value: Any = "leaf"
    for _ in range(depth):
        value = [value, value]
    return {"a": value}


class Sly:
    """Has no repr, cannot be pickled, and equals everything."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


NO_JSON: list[Any] = [object(), {"a": object()}, {"a": 2**63}, {"a": math.nan}, {"a": "\ud800"}, {"\ud800": 1}]
NO_JSON += [{1: "a"}, {"a": b"b"}, {"a": {1, 2}}, nested(3000), endless(), doubled(60), {"a": "x" * 5_000_000}]

NEVER = [object(), Sly(), b"bytes", 1j, lambda: 0, [object()]]
"""What no parameter takes."""

NO_PARTS: list[dict[str, Any]] = [
    {"mentions": ("id",)},
    {"mentions": (Mention(memory="said", id="a\0b"),)},
    {"mentions": (Mention(memory="\ud800", id="a"),)},
    {"notes": ("\ud800",)},
]
"""No parts of what `find_about` returns."""

WRONG: dict[str, list[Any]] = {
    "OverflowStrategy": ["Trim", {"strategy": "Trim"}, Trim, Summarize(EchoEngine())],
    "bool": [1, 0, "yes", 1.0],
    "int": [True, "1", 1.0, 2**63, -(2**63) - 1, 10**5000, "x" * 100_000],
    "int | str": [True, 1.0, 2**63, "", "\ud800", "x" * 100_000, ["a"]],
    "float": [True, "3", math.nan, math.inf, -math.inf, 10**400],
    "float | Turn": [True, "3", math.nan, math.inf, -math.inf, 10**400, "turn", User(text="hi")],
    "type[Any] | Mapping[str, Any]": [1, "x", int, list[int], {"type": "string"}, object, "\ud800", *NO_JSON],
    "str": [1, True, 1.5, "\ud800", ["a"], {"a": "b"}],
    "Mapping[str, str]": [["a"], "a", {"a": 1}, {1: "a"}, {"a": None}, {"a": object()}, {"\ud800": "a"}, {"a": Sly()}],
    "Mapping[str, Any]": [["a"], "a", 1, *NO_JSON],
    "Any": NO_JSON,
    "MemoryUse": ["maybe", 1, "ON"],
    "AnyType": ["nope", 1, MemoryCategory.SEMANTIC],
    "AnyCategory": ["nope", 1, MemoryType.FACTS],
    "Collection[str]": ["run_started", 1, ["nope"], [1], {"run_started": 1}, [["a"]]],
    "Collection[AnyType]": ["facts", [1], ["nope"], [MemoryCategory.SEMANTIC], {"facts": 1}, 3],
    "Sequence[WebhookEvent]": ["run.failed", [], ["nope"], [1], {"run.failed": 1}, 3],
    "Sequence[str]": ["Rex", [1], [""], ["a", " "], ["\ud800"], {"a": "b"}, 3],
    "MemberRole": ["boss", 1, True, "", ["reader"]],
    "Status": ["nope", 1, True, ["active"]],
    "SessionStatus": ["nope", 1],
    "SessionOrder": ["title", 1],
    "SearchOrder": ["oldest", 1],
    "SearchedRole": ["tool", 1],
    "IfBusy": ["whenever", 1],
    "Until": ["whenever", 1],
    "IfExists": ["whenever", 1],
    "IfRaises": ["whenever", 1],
    "Missed": ["whenever", 1],
    "RunState": ["nope", 1],
    "ModelParams": [["temperature"], "temperature", {"heat": 1}, {1: 2}, {"model": "other"}, *NO_JSON],
    "Summary": ["text", User(text="hi")],
    "ChatMessage | str": [1, User(text="hi"), "message", f"{SESSION}#x", "other#0:0"],
    "Turn | ChatMessage": ["turn", 1, User(text="hi")],
    "Turn | int": ["turn", True, 1.0, 2**63, User(text="hi")],
    "Prompt": [3, None, "\ud800", ["hello"], Summary(text="forged")],
    "str | About": [1, True, "\ud800", ["a"], {"mentions": []}, *(About(**part) for part in NO_PARTS)],
    "str | Path": [1, "a\0b", ""],
    "Sequence[Tool]": ["weather", 1, {"name": "weather"}, [1], ["weather"], [{"name": "weather"}]],
    "EventSink": [1, "print", [print]],
    "Sequence[LedgerField]": ["day", [1], ["nope"], [["day"]], {"day": 1}, 3],
    "Quota": ["runs", 1, {"runs": 1}, Quota(), Quota(runs=0), Quota(runs=1, per="hour")],  # type: ignore[arg-type]
    "date | str": [1, 1.5, True, "yesterday", "2026-13-01", "\ud800", ["2026-11-29"], datetime(2026, 11, 29)],
    "Sequence[Any]": ["hello", {"role": "user", "content": "hi"}, 1, [1], ["hello"], [{}], []],
    "MessageFormat": ["html", 1, "OPENAI_CHAT"],
}


def wrong_values(annotation: str) -> Iterator[Any]:
    """Yield values that a parameter of this type refuses."""
    kinds = annotation.removesuffix(" | None")
    yield from (value for value in NEVER if kinds != "EventSink" or not callable(value))
    if not annotation.endswith("None") and kinds != "Any":
        yield None
    kinds = kinds.removesuffix(" | bool")
    assert kinds in WRONG, f"say in WRONG what {kinds} refuses"
    yield from WRONG[kinds]


@pytest.mark.parametrize(("verb", "parameter"), PARAMETERS)
def test_a_value_of_the_wrong_type_is_refused_before_anybody_is_asked(
    world: World, verb: Verb, parameter: inspect.Parameter, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What holds itself again and again is copied up to the limit, which takes its time.
    monkeypatch.setattr(inputs.json_object, "__defaults__", (inputs.MAX_JSON_BYTES // 200,))
    for module in (provided_result, session_memory, blocking_session_memory):
        monkeypatch.setattr(module, "MAX_JSON_BYTES", inputs.MAX_JSON_BYTES // 200)
    world.verbs.clear()
    for value in wrong_values(parameter.annotation):
        with pytest.raises(InvalidInputError) as refused:
            world.call(verb, **{parameter.name: value})
        assert len(str(refused.value)) < 500
        assert pickle.loads(pickle.dumps(refused.value)).args == refused.value.args
        if not isinstance(refused.value, InvalidPromptError):
            name = parameter.name.removesuffix("_id").replace("_", " ")
            assert name in str(refused.value).replace("_", " ")
            assert not world.verbs


OUT_OF_RANGE = [
    *(("run", "timeout_s", value) for value in (0, -1, 1e300)),
    *(
        (verb, "limit", value)
        for verb in ("turns", "runs", "messages", "events", "list", "recall")
        for value in (0, -1, 2**31)
    ),
    *((verb, "timeout_s", -1) for verb in ("wait",)),
    *(("open", "ttl_s", value) for value in (-1, math.nan)),
    *(("list", "cursor", value) for value in ("over there", "", "nan:1", "1:x", f"1.0:{2**64}")),
    *(("clear", "keep_last", value) for value in (-1, 2**31)),
    *(("messages", "before", value) for value in ("over there", "", "1", "x:1", "-1:0", f"{2**64}:0")),
    *((verb, "since", math.inf) for verb in ("list", "runs")),
    *((verb, "title", "x" * 1001) for verb in ("open", "update")),
    ("update", "metadata", {"a": "x" * 65_536}),
    ("update", "metadata", {"turnwise.sealed": "tw1:x"}),
    *((verb, "run_id", value) for verb in ("execution",) for value in ("", "x" * 257, "a\nb")),
    *(("open", name, value) for name in ("session_id", "user_id", "agent") for value in ("", "x" * 257, "a\0b")),
    ("run", "idempotency_key", ""),
    *(("run", "labels", value) for value in ({str(n): "" for n in range(65)}, {"a" * 257: ""}, {"a": "b" * 257})),
    ("open", "metadata", {"a": "x" * 65_536}),
    ("open", "metadata", {"a": [0] * 40_000}),
    ("save", "text", ""),
    ("save", "id", ""),
]


@pytest.mark.parametrize(("name", "parameter", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused(world: World, name: str, parameter: str, value: Any) -> None:
    for verb in [verb for verb in VERBS if verb.name == name and parameter in {p.name for p in verb.parameters}]:
        with pytest.raises(InvalidInputError):
            world.call(verb, **{parameter: value})


def test_values_of_kinds_that_mean_the_same_are_taken(make_world: MakeWorld) -> None:
    world = make_world()
    chat = world.subject(Session)

    class Text(str):
        __slots__ = ()

    class Colour(str, Enum):  # noqa: UP042 - a kind of its own, which is no StrEnum
        RED = "red"

    labels = MappingProxyType({Text("a"): Colour.RED})
    world.run(Text("hello"), labels=labels, timeout_s=5, memory=False, idempotency_key=Text("key"))
    assert chat.runs()[-1].labels == {"a": "red"}
    metadata = FrozenDict({"deep": nested(50), "list": (1, -(2**63), 2**63 - 1, None, True, 1.5), "x": Colour.RED})
    opened = world.subject(SessionManager).open("other", metadata=metadata, ttl_s=0)
    assert opened.info().session.metadata == {**metadata, "x": "red"}
    memory = world.subject(SessionMemory)
    assert memory.save("Ann has a boat.", type="facts")
    for types in ({MemoryType.FACTS}, ["facts"], (MemoryType.FACTS, "goals")):
        assert [item.text for item in memory.recall("boat", types=types)] == ["Ann has a boat."]
    assert memory.recall("boat", types=[]) == []


def test_limits_of_metadata_and_labels_can_be_set(make_world: MakeWorld) -> None:
    world = make_world(config=SessionConfig(max_metadata_bytes=12, max_labels=1, max_label_chars=3))
    manager = world.subject(SessionManager)
    with pytest.raises(InvalidInputError, match=r"metadata=.*at most 12 bytes"):
        manager.open("new", metadata={"a": "12345"})
    manager.open("new", metadata={"a": "1234"})
    chat = world.subject(Session)
    for labels, reason in (
        ({"a": "b", "c": "d"}, "at most 1"),
        ({"a": "1234"}, "at most 3"),
        ({"1234": "a"}, "at most 3"),
    ):
        with pytest.raises(InvalidInputError, match=f"labels=.*{reason}"):
            chat.run("hello", labels=labels)
    world.run("hello", labels={"abc": "def"})


def _called(verb: Callable[..., Any], **arguments: Any) -> None:
    answer = verb(**arguments)
    if inspect.isawaitable(answer):
        PORTAL.run(_awaited(answer))


def test_an_unknown_keyword_is_a_type_error_as_for_any_function(world: World) -> None:
    for verb in VERBS:
        # of `SessionMemory.update`, whose other arguments are looked at by itself
        required = {"id": "1"} if verb.name == "update" and "id" in {p.name for p in verb.parameters} else {}
        method = getattr(world.subject(verb.family), verb.name)
        if verb.name == "change_schedule":
            method = partial(method, VALID["key"])
        with pytest.raises(TypeError, match="unknown"):
            _called(method, **required, unknown=1)


def test_an_error_shows_a_value_shortened_whatever_its_repr_does() -> None:
    assert shown(Sly()).startswith("<Sly")
    assert shown(10**5000) == "<int>"
    assert len(shown("x" * 10**7)) < 130
    assert len(shown(doubled(60))) < 130
    assert len(shown([[["x" * 100] * 100] * 100] * 100)) < 130


STORES = {"sqlite": SQLItems, "postgresql": SQLItems, "redis": RedisItems}
"""The kinds of stores, and where they keep items."""

EDGES: dict[str, list[Any]] = {
    "int": [0, -1, 1, 2**31 - 1, 2**31, 2**53, -(2**63), 2**63 - 1],
    "float": [0.0, -0.0, 5e-324, 1e-9, 1e9, 1e18, 1.7e308, -1e300],
    "str": ["a\0b", "\0", " ", "\u2028", "\N{GRINNING FACE}", "x" * 10_000, "'; --", "%s{}$1\\"],
    "Prompt": ["a\0b", "\N{GRINNING FACE}"],
    "Mapping[str, str]": [{"a\0": "b\0"}, {"": ""}, {}],
    "Mapping[str, Any]": [{"a\0": "b\0"}, {"": [None, 2**63 - 1, 1.7e308, {}]}, {}],
    "Any": ["a\0b", {}],
}


@pytest.fixture(params=STORES)
def make_stored_world(request: pytest.FixtureRequest, tmp_path: Path) -> MakeWorld:
    """Makes worlds in a store of each kind, with the memories there too; the notes are in SQLite if that is a Redis."""
    fixtures = {"postgresql": "database", "redis": "redis_url"}
    url = of_notes = f"sqlite:///{tmp_path}/all.db"
    if request.param != "sqlite":
        url = request.getfixturevalue(fixtures[request.param])
    if request.param == "postgresql":
        of_notes = url
    make_world = request.getfixturevalue("make_world")  # now, so that its worlds end before the database does
    memory = [LexicalMemory(STORES[request.param](url))]
    notes = WorkingMemory(SQLItems(of_notes, space="notes"))
    return partial(make_world, store=url, memory=memory, working_memory=notes)


def test_every_store_takes_what_verbs_let_through(make_stored_world: MakeWorld) -> None:
    """The verbs of one family; the other family sends the same requests."""
    world = make_stored_world()
    for verb in (verb for verb in VERBS if not verb.family.__name__.startswith("Async")):
        for parameter in verb.parameters:
            for value in EDGES.get(parameter.annotation.removesuffix(" | None"), []):
                try:
                    world.call(verb, **{parameter.name: value})
                except NEVER_RAISED as error:
                    raise AssertionError(f"{verb}({parameter.name}={value!r}) failed") from error
                except TurnwiseError:
                    pass  # it is refused, or what it names is not there
    world.check_that_it_works()


def test_a_run_ends_for_a_reason_with_a_null_character_in_every_store(make_stored_world: MakeWorld) -> None:
    world = make_stored_world(ScriptedEngine())
    chat = world.subject(Session)
    run = chat.run("slow 400")
    assert run.cancel("a\0b")
    with pytest.raises(RunCancelledError, match="a\N{REPLACEMENT CHARACTER}b"):
        run.wait(10)
    with pytest.raises(RunFailedError, match="c\N{REPLACEMENT CHARACTER}d"):
        world.run("raise c\0d")
    assert world.run("still there?").text


SURROGATES = st.text(st.characters(), max_size=5)
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.floats(), SURROGATES, st.binary()),
    st.builds(Sly),
    st.sampled_from([object(), 1j, lambda: 0, Path("a"), MemoryType.FACTS, MemoryCategory.EPISODIC]),
    st.sampled_from(["", "\0", "on", "reject", "active", "created_at", "facts", "1.0:1", "nan:0", "x" * 300]),
    st.sampled_from(
        [
            User(text="hi"),
            Summary(text="s"),
            User.model_construct(text=object()),
            Unknown(stored_kind="new", payload=nested(300)),
        ]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        *(st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(SURROGATES, inner, max_size=3)),
    ),
    max_leaves=5,
)

NEVER_RAISED = (SessionLostError, StoreError, LongTermMemoryError, EngineError, RunFailedError)
"""Errors that say that something broke: no argument may be their cause."""


@pytest.mark.by_turns
@settings(deadline=None, max_examples=share(500, 4))
@given(st.data())
def test_no_argument_breaks_a_verb_or_its_session(data: st.DataObject) -> None:
    verb = data.draw(st.sampled_from([verb for verb in VERBS if verb.parameters]))
    varied = data.draw(st.lists(st.sampled_from(verb.parameters), min_size=1, max_size=2, unique_by=str))
    values = {parameter.name: data.draw(VALUES, label=parameter.name) for parameter in varied}
    if verb.name == "sweep":
        values.pop("archive", None)  # folders of such names would be made
    world = World()
    try:
        check_that_nothing_breaks(world, verb, values)
    finally:
        world.close()


def check_that_nothing_breaks(world: World, verb: Verb, values: dict[str, Any]) -> None:
    try:
        world.call(verb, **values)
    except InvalidInputError:
        world.check_that_it_works()
    except NEVER_RAISED:
        raise
    except TurnwiseError:
        pass  # the values were taken: what they name is not there, or is not possible now
    else:
        if verb.name == "append":
            world.run("takes up what was appended")
        if verb.name not in ("delete", "forget"):
            world.check_that_it_works()


@pytest.mark.parametrize("verb", ["run", "start"])
def test_a_misspelt_option_of_a_run_is_a_type_error_and_starts_nothing(world: World, verb: str) -> None:
    session = world.subject(Session)
    world.verbs.clear()
    with pytest.raises(TypeError, match="unexpected keyword argument 'iff_busy'"):
        getattr(session, verb)(iff_busy="enqueue", timeout_s="soon")
    with pytest.raises(TypeError, match=r"Session\.run\(\) got .* 'iff_busy'; did you mean 'if_busy'\?"):
        getattr(session, verb)(iff_busy="enqueue")
    with pytest.raises(TypeError, match=r"'temprature'; did you mean params=\{'temperature': \.\.\.\}\?"):
        getattr(session, verb)(temprature=0.5)
    assert not world.verbs


@pytest.mark.parametrize("manager", [SessionManager, AsyncSessionManager])
def test_a_manager_names_a_missing_or_misspelt_argument_and_itself(manager: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{manager.__name__}\(\): missing a required .*'engine'"):
        manager("memory://a")
    with pytest.raises(TypeError, match=rf"^{manager.__name__}\(\) got .* 'placment'; did you mean 'placement'\?"):
        manager(engine=EchoEngine(), placment=None)


def test_a_second_thread_may_make_a_request_while_the_first_one_is_prepared() -> None:
    """Pydantic resolves names in the module of the type that it looks at, also the names of another thread's call."""
    reached, has_answered = Event(), Event()

    class Slow:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
            reached.set()
            has_answered.wait(0.5)
            return any_schema()

    fields_type = make_dataclass("Fields", [("slow", Slow)])
    fields_type.__module__ = "turnwise.errors"  # which has no `inputs`

    def request(fields: Any, text: inputs.Text) -> str:
        return text

    wrapped = inputs.checked(fields=fields_type, text=inputs.Text)(request)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(wrapped, fields_type(1), "first")
        assert reached.wait(30)
        second = pool.submit(wrapped, fields_type(2), "second")
        second.add_done_callback(lambda _: has_answered.set())
        assert (first.result(), second.result()) == ("first", "second")
