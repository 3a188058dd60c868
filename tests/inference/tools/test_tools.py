"""Tools: their schemas, arguments and results, and how they pickle."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import pytest
from pydantic import BaseModel, Field, field_validator
from ray import cloudpickle

from tools.tool_calls import answer, call, error, use
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import external_tool, tool
from turnwise.errors import ConfigError, ToolError
from turnwise.memory.conversation.blocks import encode

if TYPE_CHECKING:
    from decimal import Decimal as NotThere


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
    arguments = {"place": {"city": "Bonn", "country": "DE"}, "colours": ["blue"], "mode": "drive", "note": "n"}
    assert answer(visit, **arguments, extra=1, tags=["t"]) == "Bonn DE blue drive n False ['t']"


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
    received = []

    @tool(retries=1)
    def collect(items: Any, pairs: Annotated[list[list[int]], Field(strict=True)]) -> str:
        received.append((items, [list(pair) for pair in pairs]))
        items["list"].append("changed")
        pairs[0].append(9)
        raise RuntimeError("again")

    error(collect, {"backoff_s": 0}, items={"list": ["a"]}, pairs=[[1, 2]])
    assert received == [({"list": ["a", "changed"]}, [[1, 2]])] * 2


def test_methods_instances_and_partial_functions_are_tools() -> None:
    shelf = Shelf("a", "ab", "b")
    assert answer(tool(shelf.count), prefix="a") == "2"
    book_tool = tool(shelf, name="book")
    assert (book_tool.name, book_tool.description) == ("book", "Return the book there.")
    assert answer(book_tool, at=2) == "b"

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
    ask_tool = external_tool("ask", "Ask a person.", {"type": "object", "properties": {"q": {"type": "string"}}})
    assert ask_tool.is_external and not find.is_external
    assert ask_tool.definition.parameters == {"type": "object", "properties": {"q": {"type": "string"}}}
    assert external_tool("go", "Go.", Place).parameters["required"] == ("city",)
    with pytest.raises(TypeError, match="ExecutionHandle"):
        ask_tool("q")
    assert "by the caller" in error(ask_tool, {"on_error": "retry"})


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
    for name, arguments, reason in cases:
        refused = registry.check(use(name, arguments))
        assert refused is not None and refused.is_error and reason in refused.text


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
        ("half \ud83d", "half \ufffd"),
        (["half \ud83d", "é"], '["half \ufffd","é"]'),
        ({"a": Place(city="\ud83d")}, '{"a":{"city":"\ufffd","country":"GB"}}'),
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
    ("value", "reason"), [(object(), "object"), ([object()], "list"), (b"\xff", "bytes"), (loop_of_lists(), "list")]
)
def test_a_result_that_is_not_json_is_an_error_without_a_retry(value: Any, reason: str) -> None:
    calls = []

    @tool
    def give() -> Any:
        calls.append(1)
        return value

    assert error(give, {"on_error": "retry", "backoff_s": 0}).startswith(f"the tool returned {reason}, which cannot")
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
    (ToolError("\ud83d"), "\ufffd"),
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


# Pickling


def test_module_level_tools_pickle_by_name_and_others_by_value() -> None:
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(find)) is find
        again = pickle.loads(dumps(plain_tool))
        assert again == plain_tool and again is not plain_tool
        assert answer(again, query="q") == "q"
        bound = pickle.loads(dumps(tool(Shelf("a", "ab").count)))
        assert answer(bound, prefix="a") == "2"
        ask_tool = external_tool("ask", "Ask.", {"type": "object"})
        assert pickle.loads(dumps(ask_tool)) == ask_tool
        registry = ToolRegistry(find, plain_tool, ask_tool, later, allow=["find"], timeout_s=None, on_error="abort")
        assert pickle.loads(dumps(registry)) == registry


@pytest.mark.by_turns
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
