"""Tools and their registry: schemas, results, timeouts, retries, cancels, and what a tool is told."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import pytest
from pydantic import BaseModel, Field, field_validator
from ray import cloudpickle

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.tools.context import CancelSignal, ToolContext
from turnwise.actors.inference.tools.registry import ToolOutcome, ToolRegistry
from turnwise.actors.inference.tools.tool import Tool, external_tool, tool
from turnwise.errors import ConfigError, ToolAbortError, ToolError
from turnwise.memory.conversation.blocks import ToolUse, encode

if TYPE_CHECKING:
    from decimal import Decimal as NotThere

LONG_S = 10.0
"""More than any test takes, so what waits for it has hung."""

SESSION = SessionView(session_id="s1", user_id="ada", agent="helper", metadata={})


def context(**values: Any) -> ToolContext:
    return ToolContext(**{"session": SESSION, "run_id": "r1", "turn_index": 3, "call_id": "c1", **values})


def use(name: str, arguments: Mapping[str, Any] | None = None, call_id: str = "c1") -> ToolUse:
    return ToolUse(call_id=call_id, name=name, input=dict(arguments or {}))


def call(registry: ToolRegistry, name: str, /, **arguments: Any) -> ToolOutcome:
    """Make one call on an event loop of its own."""
    return asyncio.run(registry.call(use(name, arguments), context()))


def answer(*tools: Tool, **arguments: Any) -> str:
    """Return the text that the one tool gives, and that it is no error."""
    outcome = call(ToolRegistry(*tools), tools[0].name, **arguments)
    assert not outcome.result.is_error, outcome.result.text
    return outcome.result.text


def error(made: Tool, settings: Mapping[str, Any] | None = None, /, **arguments: Any) -> str:
    """Return the text of the error that the tool gives."""
    outcome = call(ToolRegistry(made, **settings or {}), made.name, **arguments)
    assert outcome.result.is_error, outcome.result.text
    return outcome.result.text


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or task brings about."""
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    country: str = "GB"

    @field_validator("city")
    @classmethod
    def _is_known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ZeroDivisionError("it sank")
        return city


@tool
def find(query: str, limit: int = 3) -> list[str]:
    """Search the shelf.

        It is indented.

    Args:
        query: what to look for,
            in words
        limit (int): how many: at most
    """
    return [query] * limit


@tool(name="undecorated", timeout_s=5, retries=1, approval=True, repeatable=True)
async def later(text: Annotated[str, Field(description="Said later.")]) -> str:
    return text


def plain(query: str) -> str:
    """Return it."""
    return query


plain_tool = tool(plain)


class Shelf:
    def __init__(self, *books: str) -> None:
        self.books = books

    def count(self, prefix: str) -> int:
        """Count the books."""
        return sum(book.startswith(prefix) for book in self.books)

    def __call__(self, at: int) -> str:
        """Return the book there."""
        return self.books[at]


# Schemas


def test_a_schema_comes_from_the_signature_and_the_docstring() -> None:
    assert find.definition.description == (
        "Search the shelf.\n\n    It is indented.\n\n"
        "Args:\n    query: what to look for,\n        in words\n    limit (int): how many: at most"
    )
    assert find.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, in words"},
            "limit": {"type": "integer", "default": 3, "description": "how many: at most"},
        },
        "required": ("query",),
        "additionalProperties": False,
    }


def test_explicit_options_override_what_the_function_says() -> None:
    assert (later.name, later.timeout_s, later.retries, later.approval, later.repeatable) == (
        "undecorated",
        5,
        1,
        True,
        True,
    )
    assert later.parameters["properties"]["text"] == {"type": "string", "description": "Said later."}
    assert tool(plain, description="  Other.").description == "Other."
    described = tool(like_args)
    assert described.parameters["properties"]["x"]["description"] == "by the field"


def like_args(x: Annotated[int, Field(description="by the field")]) -> int:
    """Do it.

    Args:
        x: by the docstring
    """
    return x


def test_a_tool_can_be_called_like_its_function() -> None:
    assert find("tea", limit=2) == ["tea", "tea"]
    assert asyncio.run(later("so")) == "so"


def test_models_enums_literals_and_defaults_of_all_kinds_have_a_schema() -> None:
    marker = object()

    @tool
    def visit(
        place: Place,
        *,
        colours: list[Colour],
        mode: Literal["walk", "drive"] = "walk",
        note: str | None = None,
        extra: Annotated[Any, Field(description="anything")] = marker,
        tags: list[str] = Field(default_factory=list),  # noqa: B008 - as pydantic has it
    ) -> str:
        assert type(place) is Place and all(type(colour) is Colour for colour in colours)
        return f"{place.city} {place.country} {colours[0].value} {mode} {note} {extra is marker} {tags}"

    assert answer(visit, place={"city": "Bath"}, colours=["red"]) == "Bath GB red walk None True []"
    assert "default" not in visit.parameters["properties"]["extra"]
    given = {"place": {"city": "Bonn", "country": "DE"}, "colours": ["blue"], "mode": "drive", "note": "n"}
    assert answer(visit, **given, extra=1, tags=["t"]) == "Bonn DE blue drive n False ['t']"


def test_parameters_may_have_names_that_pydantic_fields_may_not() -> None:
    @tool
    def odd(copy: int, json: str, model_config: int, _hidden: int, schema: int = 5) -> list[Any]:
        return [copy, json, model_config, _hidden, schema]

    assert answer(odd, copy=1, json="j", model_config=2, _hidden=3) == '[1,"j",2,3,5]'
    assert "a0: Extra inputs" in error(odd, a0=1, json="j", model_config=2, _hidden=3)


def test_an_alias_is_what_the_model_sees() -> None:
    @tool
    def trip(from_: Annotated[str, Field(alias="from")]) -> str:
        return from_

    assert list(trip.parameters["properties"]) == ["from"]
    assert answer(trip, **{"from": "Rome"}) == "Rome"


def test_each_attempt_gets_new_arguments_as_plain_json() -> None:
    seen = []

    @tool(retries=1)
    def collect(items: Any, pairs: Annotated[list[list[int]], Field(strict=True)]) -> str:
        seen.append((items, [list(pair) for pair in pairs]))
        items["list"].append("changed")
        pairs[0].append(9)
        raise RuntimeError("again")

    error(collect, {"backoff_s": 0}, items={"list": ["a"]}, pairs=[[1, 2]])
    assert seen == [({"list": ["a", "changed"]}, [[1, 2]])] * 2


def test_methods_instances_and_partial_functions_are_tools() -> None:
    shelf = Shelf("a", "ab", "b")
    assert answer(tool(shelf.count), prefix="a") == "2"
    seen = tool(shelf, name="book")
    assert (seen.name, seen.description) == ("book", "Return the book there.")
    assert answer(seen, at=2) == "b"

    def owned(owner: str, what: str, how: str = "well") -> str:
        """Own it."""
        return f"{owner} {what} {how}"

    part = tool(functools.partial(owned, "ada", how="ill"))
    assert (part.name, part.description, list(part.parameters["properties"])) == ("owned", "Own it.", ["what"])
    assert answer(part, what="tea") == "ada tea ill"
    assert "how: Extra inputs" in error(part, what="tea", how="other")


def test_an_instance_with_an_asynchronous_call_runs_on_the_loop() -> None:
    class Loud:
        async def __call__(self, text: str) -> str:
            asyncio.get_running_loop()
            return text.upper()

    loud = tool(Loud(), name="loud")
    assert loud.is_async and later.is_async and not find.is_async
    assert answer(loud, text="a") == "A"


def no_annotation(x) -> None: ...  # type: ignore[no-untyped-def]
def variable(*x: int) -> None: ...
def variable_keywords(**x: int) -> None: ...
def positional(x: int, /) -> None: ...
def unresolvable(x: NotThere) -> None: ...
def no_schema(x: threading.Lock) -> None: ...
def forged(x: list[ToolContext]) -> None: ...
def mixed(x: ToolContext | str) -> None: ...
def callback(x: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    "function",
    [no_annotation, variable, variable_keywords, positional, unresolvable, no_schema, forged, mixed, callback],
)
def test_a_parameter_without_a_schema_is_a_config_error_that_names_it(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        tool(function)
    assert (raised.value.setting, raised.value.value) == ("parameter", "x")
    assert f"tool {function.__name__!r}" in str(raised.value)


def test_an_unbound_method_a_bad_name_and_bad_settings_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="the bound method"):
        tool(Shelf.count)
    for name in ("", "a b", "x" * 65, "é", "new\n"):
        with pytest.raises(ConfigError, match="letters"):
            tool(plain, name=name)
    with pytest.raises(ConfigError, match="<lambda>"):
        tool(lambda: 1)
    with pytest.raises(ConfigError, match="timeout_s"):
        tool(plain, timeout_s=0)
    with pytest.raises(ConfigError, match="retries"):
        tool(plain, retries=-1)
    with pytest.raises(ConfigError, match="must be a function"):
        tool("plain")  # type: ignore[call-overload]


# External tools


def test_an_external_tool_has_a_schema_and_no_function() -> None:
    asked = external_tool("ask", "Ask a person.", {"type": "object", "properties": {"q": {"type": "string"}}})
    assert asked.is_external and not find.is_external
    assert asked.definition.parameters == {"type": "object", "properties": {"q": {"type": "string"}}}
    assert external_tool("go", "Go.", Place).parameters["required"] == ("city",)
    with pytest.raises(TypeError, match="ExecutionHandle"):
        asked("q")
    assert "by the caller" in error(asked, {"on_error": "retry"})


def test_the_arguments_of_an_external_tool_are_checked_too() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}, "required": ["n"]}
    registry = ToolRegistry(external_tool("raw", "", schema), external_tool("typed", "", Place))
    assert registry.check(use("raw", {"n": [1]})) is None
    assert registry.check(use("typed", {"city": "Bath"})) is None
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("raw", {}, "'n' is a required property"),
        ("raw", {"n": [1, "x"]}, "n.1: 'x' is not of type 'integer'"),
        ("typed", {"city": 5}, "city: Input should be a valid string"),
    ]
    for name, arguments, why in cases:
        refused = registry.check(use(name, arguments))
        assert refused is not None and refused.is_error and why in refused.text


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": "object", "properties": 5}, {"type": object()}])
def test_an_external_tool_needs_the_schema_of_an_object(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'ask'"):
        external_tool("ask", "", schema)


# Results


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Shout(StrEnum):
    LOUD = "loud"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it\nis", "as it\nis"),
        ("", ""),
        (None, "done"),
        (Shout.LOUD, "loud"),
        (False, "false"),
        (1.5, "1.5"),
        (float("nan"), '"NaN"'),
        ({"a": [1, {"b": None}]}, '{"a":[1,{"b":null}]}'),
        (Place(city="Bath"), '{"city":"Bath","country":"GB"}'),
        ([Point(1, 2.5)], '[{"x":1,"y":2.5}]'),
        ("half \ud83d", "half ?"),
        (["half \ud83d", "é"], '["half ?","é"]'),
        ({"a": Place(city="\ud83d")}, '{"a":{"city":"?","country":"GB"}}'),
    ],
)
def test_a_result_is_text_or_compact_json_that_can_be_stored(value: Any, text: str) -> None:
    @tool
    def give() -> Any:
        return value

    assert answer(give) == text
    assert encode(call(ToolRegistry(give), "give").result)


def loop_of_lists() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("value", "why"), [(object(), "object"), ([object()], "list"), (b"\xff", "bytes"), (loop_of_lists(), "list")]
)
def test_a_result_that_is_not_json_is_an_error_without_a_retry(value: Any, why: str) -> None:
    calls = []

    @tool
    def give() -> Any:
        calls.append(1)
        return value

    assert error(give, {"on_error": "retry", "backoff_s": 0}).startswith(f"the tool returned {why}, which cannot")
    assert len(calls) == 1


def test_long_results_and_errors_are_cut_with_a_note() -> None:
    @tool
    def long(fail: bool = False) -> str:
        if fail:
            raise ToolError("x" * 31)
        return "x" * 31

    cut = f"{'x' * 30}\n[cut: these are the first 30 of 31 characters]"
    registry = ToolRegistry(long, max_result_chars=30)
    assert call(registry, "long").result.text == cut
    assert call(registry, "long", fail=True).result.text == cut
    assert call(ToolRegistry(long, max_result_chars=31), "long").result.text == "x" * 31


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED = [
    (ValueError("bad\nday"), "ValueError: bad\nday"),
    (KeyError("k"), "KeyError: 'k'"),
    (RuntimeError(), "RuntimeError"),
    (ToolError("Use the {English} name."), "Use the {English} name."),
    (ToolError("\ud83d"), "?"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (UnspeakableError(), "UnspeakableError"),
    (asyncio.CancelledError(), "CancelledError: the tool cancelled itself"),
    (StopIteration(5), "RuntimeError: coroutine raised StopIteration"),
    (ExceptionGroup("two", [ValueError("a")]), "ExceptionGroup: two (1 sub-exception)"),
]


@pytest.mark.parametrize(("raised", "text"), RAISED, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_of_a_tool_is_an_error_result_without_a_traceback(
    raised: BaseException, text: str, is_async: bool
) -> None:
    @tool
    def fail() -> NoReturn:
        raise raised

    @tool(name="fail")
    async def fail_async() -> NoReturn:
        raise raised

    assert error(fail_async if is_async else fail) == text


# Unknown tools and bad arguments: acceptance 32


@pytest.mark.parametrize("on_error", ["continue", "abort", "retry"])
def test_unknown_and_disallowed_tools_and_invalid_arguments_give_error_results_without_attempts(on_error: Any) -> None:
    calls = []

    @tool
    def count(number: int, place: Place | None = None) -> str:
        calls.append(number)
        return "counted"

    registry = ToolRegistry(count, find, plain_tool, deny=["find"], on_error=on_error)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("nothing", {}, "There is no tool 'nothing'. The tools are: count, plain."),
        ("find", {"query": "q"}, "There is no tool 'find'. The tools are: count, plain."),
        ("count", {}, "The arguments do not match the schema of 'count': number: Field required"),
        ("count", {"number": "x", "user_id": 1}, "number: Input should be a valid integer, unable to parse"),
        ("count", {"number": 1, "user_id": 1}, "user_id: Extra inputs are not permitted"),
        ("count", {"number": 1, "place": {}}, "place.city: Field required"),
        ("count", {"number": 1, "place": {"city": "Atlantis"}}, "ZeroDivisionError: it sank"),
        ("count", {"number": "\ud83d"}, "do not match"),
    ]
    for name, arguments, why in cases:
        outcome = call(registry, name, **arguments)
        assert outcome.result.is_error and why in outcome.result.text, outcome
        assert outcome.result.call_id == "c1" and outcome.tries == 0
        assert "pydantic" not in outcome.result.text
        assert registry.check(use(name, arguments)) == outcome.result
    assert calls == []
    assert "There are no tools." in call(ToolRegistry(), "x").result.text


def test_allow_and_deny_select_the_tools() -> None:
    registry = ToolRegistry(find, later, plain_tool, allow=["plain", "find"], deny=("find",))
    assert [each.name for each in registry.definitions()] == ["plain"]
    assert registry.find("plain") is plain_tool
    assert registry.find("find") is registry.find("undecorated") is registry.find("nothing") is None
    assert ToolRegistry(find, allow=[]).definitions() == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"allow": ["nothing"]},
        {"deny": ["nothing"]},
        {"on_error": "ignore"},
        {"retries": -1},
        {"backoff_s": -1},
        {"timeout_s": 0},
        {"max_parallel": 0},
        {"max_steps": 0},
        {"max_result_chars": 0},
    ],
)
def test_a_setting_out_of_its_range_is_a_config_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        ToolRegistry(find, **settings)
    assert raised.value.setting == next(iter(settings))


def test_two_tools_with_one_name_and_a_plain_function_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="'find'"):
        ToolRegistry(find, tool(plain, name="find"))
    with pytest.raises(ConfigError, match="@tool"):
        ToolRegistry(plain)  # type: ignore[arg-type]


def test_a_registry_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ToolRegistry().max_steps = 3  # type: ignore[misc]


# What a tool is told


@tool
def whoami(question: str, told: ToolContext, maybe: ToolContext | None = None) -> dict[str, Any]:
    """Say who asks."""
    assert maybe is told
    return {"user": told.session.user_id, "key": told.idempotency_key, "turn": told.turn_index, "call": told.call_id}


def test_the_context_comes_from_the_session_and_never_from_arguments() -> None:
    """Acceptance 50."""
    assert list(whoami.parameters["properties"]) == ["question"]
    assert answer(whoami, question="who?") == '{"user":"ada","key":"r1/c1","turn":3,"call":"c1"}'
    forged: Any = {"session": {"session_id": "s", "user_id": "eve", "agent": None, "metadata": {}}}
    for name, value in [("told", forged), ("maybe", forged), ("user_id", "eve"), ("context", forged)]:
        assert f"{name}: Extra inputs" in error(whoami, question="who?", **{name: value})


def test_the_context_has_the_call_and_the_attempt() -> None:
    seen = []

    @tool(retries=2)
    def flaky(told: Annotated[ToolContext, "given"]) -> str:
        seen.append((told.try_number, told.call_id, told.idempotency_key))
        raise ConnectionError("down")

    registry = ToolRegistry(flaky, backoff_s=0)
    asyncio.run(registry.call(use("flaky", call_id="c7"), context()))
    assert seen == [(number, "c7", "r1/c7") for number in (1, 2, 3)]


def test_a_pickled_context_has_a_signal_that_is_never_set() -> None:
    told = context(labels={"a": "b"})
    told.cancelled.set()
    for pickled in (pickle.dumps(told), cloudpickle.dumps(told)):
        again = pickle.loads(pickled)
        assert again == told and not again.cancelled.is_set()
        told.cancelled.set()
        assert not again.cancelled.is_set()


async def test_context_variables_reach_tools() -> None:
    locale = contextvars.ContextVar("locale", default="none")

    @tool
    def there() -> str:
        locale_then, _ = locale.get(), locale.set("changed")
        return locale_then

    @tool(name="here")
    async def here() -> str:
        return locale.get()

    locale.set("de")
    registry = ToolRegistry(there, here)
    outcomes = [await registry.call(use(name), context()) for name in ("there", "here", "there")]
    assert [outcome.result.text for outcome in outcomes] == ["de", "de", "de"]


def test_a_synchronous_tool_runs_off_the_event_loop_and_an_asynchronous_one_on_it() -> None:
    threads = {}

    @tool
    def there() -> str:
        threads["there"] = threading.current_thread()
        return "x"

    @tool
    async def here() -> str:
        threads["here"] = threading.current_thread()
        return "x"

    answer(there)
    answer(here)
    assert threads["here"] is threading.current_thread()
    assert threads["there"] is not threading.current_thread() and threads["there"].daemon


def test_a_plain_function_that_returns_a_coroutine_is_awaited() -> None:
    @tool
    def wrapper(text: str) -> Any:
        return later(text)

    assert answer(wrapper, text="so") == "so"


def test_approval_is_a_setting_or_a_function_and_true_if_that_fails() -> None:
    def is_dear(arguments: Mapping[str, Any], told: ToolContext) -> bool:
        return arguments["price"] > 10 or told.session.user_id != "ada"

    buy = tool(plain, name="buy", approval=is_dear)
    assert later.needs_approval({}, context())
    assert not find.needs_approval({}, context())
    assert [buy.needs_approval({"price": price}, context()) for price in (5, 50)] == [False, True]
    assert buy.needs_approval({}, context())


# Signals


async def test_a_signal_wakes_threads_and_coroutines() -> None:
    signal = CancelSignal()
    woken = []
    thread = threading.Thread(target=lambda: woken.append(signal.wait(LONG_S)))
    thread.start()

    waiting = [asyncio.create_task(signal.wait_async()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert not signal.is_set() and not signal.wait(0)
    threading.Timer(0.1, signal.set).start()  # nothing else wakes the loop
    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*waiting[1:], signal.wait_async())
    assert waiting[0].cancelled()
    thread.join(LONG_S)
    assert woken == [True] and signal.is_set()


def test_listeners_are_called_once_and_not_after_their_removal() -> None:
    signal = CancelSignal()
    heard: list[int] = []
    first, second, third = (functools.partial(heard.append, number) for number in (1, 2, 3))
    signal.listen(first)
    signal.listen(second)
    signal.forget(second)
    signal.forget(third)
    signal.set()
    signal.set()
    signal.listen(third)
    assert heard == [1, 3]


# Errors, retries, timeouts, cancels: acceptance 31 and 9


def failing(times: int, **options: Any) -> tuple[Tool, list[float]]:
    """Return a tool that fails so often before it works, and the list of when it was called."""
    calls: list[float] = []

    @tool(**options)
    def flaky() -> str:
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise ConnectionError(f"failure {len(calls)}")
        return "up"

    return flaky, calls


@pytest.mark.parametrize(
    ("times", "settings", "options", "tries", "is_error"),
    [
        (2, {"on_error": "retry"}, {}, 3, False),
        (3, {"on_error": "retry"}, {}, 3, True),
        (1, {"on_error": "continue"}, {}, 1, True),
        (3, {"on_error": "continue"}, {"retries": 3}, 4, False),
        (1, {"on_error": "retry"}, {"retries": 0}, 1, True),
        (1, {"on_error": "abort"}, {"retries": 1}, 2, False),
    ],
)
def test_a_tools_retries_override_the_registrys(
    times: int, settings: dict[str, Any], options: dict[str, Any], tries: int, is_error: bool
) -> None:
    flaky, calls = failing(times, **options)
    outcome = call(ToolRegistry(flaky, backoff_s=0.001, **settings), "flaky")
    assert (outcome.tries, len(calls), outcome.result.is_error) == (tries, tries, is_error)
    assert outcome.result.text == (f"ConnectionError: failure {tries}" if is_error else "up")


def test_retries_back_off_and_the_outcome_has_the_duration() -> None:
    flaky, calls = failing(2)
    outcome = call(ToolRegistry(flaky, on_error="retry", backoff_s=0.1), "flaky")
    assert calls[1] - calls[0] >= 0.05
    assert calls[2] - calls[1] >= 0.1
    assert outcome.seconds >= 0.15


def test_pauses_double_vary_and_have_a_maximum() -> None:
    registry = ToolRegistry(backoff_s=0.5)
    for tries, longest in [(1, 0.5), (2, 1.0), (3, 2.0), (50, 30.0), (5000, 30.0)]:
        pauses = {registry._pause_s(tries) for _ in range(50)}
        assert len(pauses) > 1
        assert all(longest / 2 <= pause <= longest for pause in pauses)


def test_a_tool_error_is_not_retried() -> None:
    calls = []

    @tool
    def refuse() -> NoReturn:
        calls.append(1)
        raise ToolError("no such city")

    assert error(refuse, {"on_error": "retry", "backoff_s": 0}) == "no such city"
    assert calls == [1]


def test_abort_raises_with_the_tool_the_call_and_why() -> None:
    flaky, _ = failing(1)
    with pytest.raises(ToolAbortError) as raised:
        call(ToolRegistry(flaky, on_error="abort"), "flaky")
    assert raised.value.args == ("flaky", "c1", "ConnectionError: failure 1")


async def test_a_cancel_ends_a_pause_at_once_and_a_set_signal_ends_retries() -> None:
    flaky, calls = failing(9)
    registry = ToolRegistry(flaky, on_error="retry", backoff_s=1000)

    calling = asyncio.create_task(registry.call(use("flaky"), context()))
    await until(lambda: calls)
    await asyncio.sleep(0.05)
    calling.cancel()
    async with asyncio.timeout(LONG_S):
        with pytest.raises(asyncio.CancelledError):
            await calling
    told = context()
    told.cancelled.set()
    async with asyncio.timeout(LONG_S):
        assert (await registry.call(use("flaky"), told)).tries == 1
    assert len(calls) == 2


@asynccontextmanager
async def stuck_call(registry: ToolRegistry, started: threading.Event) -> AsyncIterator[asyncio.Task[ToolOutcome]]:
    calling = asyncio.create_task(registry.call(use(registry.tools[0].name), context()))
    await until(started.is_set)
    yield calling


async def test_a_synchronous_tool_that_times_out_is_signalled_and_its_late_result_dropped() -> None:
    """Acceptance 31 and 9: its late result reaches nobody, and the next try does not wait for it."""
    signals, release, ended = [], threading.Event(), threading.Event()

    @tool(timeout_s=0.05, retries=1)
    def stuck(told: ToolContext) -> str:
        signals.append(told.cancelled)
        if told.try_number == 2:
            return "second"
        release.wait(LONG_S)
        ended.set()
        return "late"

    outcome = await ToolRegistry(stuck, backoff_s=0).call(use("stuck"), context())
    assert not ended.is_set() and signals[0].is_set()
    release.set()
    await until(ended.is_set)
    await asyncio.sleep(0.02)
    assert (outcome.result.text, outcome.tries) == ("second", 2)


@pytest.mark.parametrize("own", [True, False])
async def test_timeouts_end_coroutines_with_an_error_result(own: bool) -> None:
    """Acceptance 31, for coroutines that take the cancel, and for those that do not."""
    ends = []

    async def polite(told: ToolContext) -> str:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ends.append(told.cancelled.is_set())
        return "late"

    async def stubborn() -> str:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "late"

    options: dict[str, Any] = {"timeout_s": 0.05} if own else {}
    registry = ToolRegistry(tool(polite, **options), tool(stubborn, **options), timeout_s=None if own else 0.05)
    outcomes = [await registry.call(use(name), context()) for name in ("polite", "stubborn")]
    await until(lambda: ends)
    await asyncio.sleep(0.1)
    assert [outcome.result.text for outcome in outcomes] == ["TimeoutError: the tool did not end within 0.05 s"] * 2
    assert ends == [True]


def test_cancelling_a_call_signals_its_thread_and_does_not_wait() -> None:
    """Acceptance 9."""
    started, release, told_so = threading.Event(), threading.Event(), threading.Event()

    @tool
    def stuck(told: ToolContext) -> str:
        started.set()
        if told.cancelled.wait(LONG_S):
            told_so.set()
        release.wait(LONG_S)
        return "late"

    troubles: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
        async with stuck_call(ToolRegistry(stuck), started) as calling:
            calling.cancel()
            done, _ = await asyncio.wait({calling}, timeout=LONG_S)
            assert done and calling.cancelled()
            await until(told_so.is_set)
            release.set()
            await until(lambda: not any(each.name == "turnwise-tool" for each in threading.enumerate()))
            await asyncio.sleep(0)  # its late result has come by now

    asyncio.run(main())
    assert troubles == []


async def test_cancelling_a_call_cancels_its_coroutine_and_does_not_wait() -> None:
    """Acceptance 9, with a coroutine that holds the cancel back."""
    started, release = threading.Event(), asyncio.Event()
    seen: list[Any] = []

    @tool
    async def stubborn(told: ToolContext) -> str:
        try:
            started.set()
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            seen.append(told.cancelled.is_set())
            await release.wait()
            seen.append("late")
        return "late"

    async with stuck_call(ToolRegistry(stubborn), started) as calling:
        calling.cancel()
        done, _ = await asyncio.wait({calling}, timeout=LONG_S)
        assert done and calling.cancelled()
        await until(lambda: seen)
        assert seen == [True]
        release.set()
        await until(lambda: len(seen) == 2)


async def test_a_runs_signal_reaches_the_tool_but_not_the_other_way() -> None:
    started = threading.Event()

    @tool
    async def patient(told: ToolContext) -> str:
        started.set()
        await told.cancelled.wait_async()
        return "stopped"

    told = context()
    calling = asyncio.create_task(ToolRegistry(patient).call(use("patient"), told))
    await until(started.is_set)
    told.cancelled.set()
    assert (await calling).result.text == "stopped"

    told = context()
    kept = []

    @tool
    def keep(told: ToolContext) -> str:
        assert not told.cancelled.is_set()
        kept.append(told.cancelled)
        return "x"

    await ToolRegistry(keep).call(use("keep"), told)
    assert kept[0].is_set(), "what it left running learns that nobody waits"
    assert not told.cancelled.is_set() and not told.cancelled._listeners


def test_stuck_tools_block_neither_other_tools_nor_the_end_of_the_loop() -> None:
    release, ended = threading.Event(), threading.Event()

    @tool(timeout_s=0.1)
    def stuck() -> None:
        release.wait(LONG_S)
        ended.set()

    @tool
    def quick() -> str:
        return "quick"

    registry = ToolRegistry(stuck, quick)

    async def main() -> str:
        await asyncio.gather(*(registry.call(use("stuck"), context()) for _ in range(60)))
        return (await registry.call(use("quick"), context())).result.text

    try:
        assert asyncio.run(main()) == "quick"
        assert not ended.is_set(), "nobody has waited for a stuck one"
    finally:
        release.set()


def test_a_stuck_tool_does_not_block_the_exit_of_the_process() -> None:
    script = """
        import asyncio, time
        from turnwise import ToolContext, blocks, tool
        from turnwise.engines import SessionView, ToolRegistry

        @tool(timeout_s=0.1)
        def stuck() -> None:
            time.sleep(60)

        session = SessionView(session_id="s", user_id="u", agent=None, metadata={})
        context = ToolContext(session=session, run_id="r", turn_index=0, call_id="c")
        outcome = asyncio.run(ToolRegistry(stuck).call(blocks.ToolUse(call_id="c", name="stuck"), context))
        print(outcome.result.text)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "TimeoutError: the tool did not end within 0.1 s\n"
    assert ended.stderr == ""


# Pickling


def test_module_level_tools_pickle_by_name_and_others_by_value() -> None:
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(find)) is find
        again = pickle.loads(dumps(plain_tool))
        assert again == plain_tool and again is not plain_tool
        assert answer(again, query="q") == "q"
        bound = pickle.loads(dumps(tool(Shelf("a", "ab").count)))
        assert answer(bound, prefix="a") == "2"
        asked = external_tool("ask", "Ask.", {"type": "object"})
        assert pickle.loads(dumps(asked)) == asked
        registry = ToolRegistry(find, plain_tool, asked, later, allow=["find"], timeout_s=None, on_error="abort")
        assert pickle.loads(dumps(registry)) == registry


def test_a_tool_of_a_script_pickles_with_its_local_types() -> None:
    script = """
        from __future__ import annotations
        import sys
        from typing import Annotated
        from pydantic import BaseModel, Field
        from ray import cloudpickle
        from turnwise import ToolContext, tool
        from turnwise.engines import ToolRegistry

        class Wish(BaseModel):
            what: str

        @tool
        def grant(wish: Wish, told: ToolContext, often: Annotated[int, Field(ge=1, description="times")] = 2) -> Wish:
            assert grant.name == "grant"
            return Wish(what=" ".join([wish.what] * often))

        sys.stdout.buffer.write(cloudpickle.dumps(ToolRegistry(grant)))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    registry = pickle.loads(ended.stdout)
    assert call(registry, "grant", wish={"what": "tea"}).result.text == '{"what":"tea tea"}'
    assert call(registry, "grant", wish={"what": "tea"}, often=0).result.is_error
    assert registry.definitions()[0].parameters["properties"]["often"]["description"] == "times"
