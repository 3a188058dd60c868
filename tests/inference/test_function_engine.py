"""`FunctionEngine` in a `SessionCore`, without Ray."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from test_tool_loop import Stage, use

from turnwise.actors.hosting.identity import identity
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import RunContext, check_taken
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.text_model import EngineModel
from turnwise.actors.inference.tools.tool import tool
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.conversation.blocks import Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import TextDelta
from turnwise.memory.conversation.turns import Outcome, Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems


def plain(turn: Turn) -> str:
    return f"Hello, {len(turn.asked)}."


async def coroutine(turn: Turn) -> str:
    await asyncio.sleep(0)
    return plain(turn)


def generator(turn: Turn) -> Iterator[str]:
    yield from ("Hel", "lo, ", f"{len(turn.asked)}.")


async def async_generator(turn: Turn) -> AsyncIterator[str]:
    for piece in generator(turn):
        await asyncio.sleep(0)
        yield piece


def awaitable(turn: Turn) -> Awaitable[str]:
    return coroutine(turn)


def async_iterator(turn: Turn) -> AsyncIterator[str]:
    return async_generator(turn)


async def iterator_of_coroutine(turn: Turn) -> AsyncIterator[str]:
    return async_generator(turn)


def pieces(greeting: str, turn: Turn) -> list[str | Text]:
    return [greeting, Text(text=", "), f"{len(turn.asked)}."]


class Speaker:
    async def __call__(self, turn: Turn) -> list[str]:
        return ["Hello, ", f"{len(turn.asked)}."]

    def speak(self, turn: Turn) -> Iterator[str]:
        return map(str, generator(turn))


FUNCTIONS: dict[str, Callable[[Turn], Any]] = {
    "function": plain,
    "coroutine function": coroutine,
    "generator": generator,
    "async generator": async_generator,
    "function that returns an async iterator": async_iterator,
    "coroutine function that returns an async iterator": iterator_of_coroutine,
    "partial": partial(pieces, "Hello"),
    "partial of an async function": partial(coroutine),
    "object": Speaker(),
    "method that returns an iterator": Speaker().speak,
    "function that returns an awaitable": awaitable,
}


async def ran(function: Callable[..., Any], **settings: Any) -> Outcome:
    return await Stage(FunctionEngine(function, **settings)).run()


@pytest.mark.parametrize("kind", FUNCTIONS)
async def test_a_function_of_any_kind_is_an_engine(kind: str) -> None:
    stage = Stage(FunctionEngine(FUNCTIONS[kind]))
    outcome = await stage.run()
    assert outcome.run.state == "completed" and outcome.turn
    assert outcome.turn.output == (Text(text="Hello, 1."),)
    deltas = [event.text for event in (await stage.core.reads.events())[0] if isinstance(event, TextDelta)]
    assert "".join(deltas) == "Hello, 1."


async def test_blocks_and_usage_are_yielded_and_kept_in_the_order_of_providers() -> None:
    def think(turn: Turn) -> Iterator[Any]:
        yield Thinking(text="Hm")
        yield Thinking(text=".", signature="signed")
        yield "Yes"
        yield Usage(input_tokens=3)
        yield Text(text=".")
        yield Usage(output_tokens=2)

    outcome = await ran(think)
    assert outcome.turn and outcome.turn.output == (Thinking(text="Hm.", signature="signed"), Text(text="Yes."))
    used = outcome.run.usage
    assert used and (used.input_tokens, used.output_tokens, used.calls) == (3, 2, 1)


async def test_a_function_that_requires_two_arguments_gets_the_context() -> None:
    def on_a_thread(turn: Turn, context: RunContext) -> str:
        context.event("looked", {"at": 1})  # type: ignore[attr-defined]
        return f"{context.session.session_id} {context.params['temperature']} {context.model}"

    async def on_the_loop(turn: Turn, context: RunContext) -> str:
        return on_a_thread(turn, context)

    for function in (on_a_thread, on_the_loop):
        stage = Stage(FunctionEngine(function, takes=["temperature", "model"]))
        await stage.start(model="large", params={"temperature": 0.5})
        outcome = await stage.outcome()
        assert outcome.turn and outcome.turn.text == f"{stage.core.session_id} 0.5 large"
        assert "custom" in [event.kind for event in await stage.events()]


async def test_after_a_tool_call_the_function_is_called_again() -> None:
    @tool
    async def weather(city: str) -> str:
        """Return the weather."""
        return f"rain in {city}"

    async def agent(turn: Turn) -> AsyncIterator[Any]:
        if texts := [block.text for block in turn.output if isinstance(block, ToolResult)]:
            yield f"There is {texts[0]}."
        else:
            yield "Let me look."
            yield use("c1", "weather", city="Paris")

    outcome = await ran(agent, tools=[weather])
    assert outcome.turn and outcome.turn.text == "There is rain in Paris."
    assert [type(block) for block in outcome.turn.output] == [Text, ToolUse, ToolResult, Text]


# Cancellation


async def test_a_cancel_stops_an_async_generator_which_cleans_up() -> None:
    closed = asyncio.Event()

    async def endless(turn: Turn) -> AsyncIterator[str]:
        try:
            yield "so far"
            await asyncio.Event().wait()
        finally:
            closed.set()

    stage = Stage(FunctionEngine(endless))
    await stage.start()
    await stage.until(lambda: _has_streamed(stage))
    await stage.core.admission.cancel("enough", "run")
    outcome = await stage.outcome()
    assert closed.is_set() and outcome.run.state == "cancelled"
    assert outcome.turn and outcome.turn.output == (Text(text="so far", interrupted=True),)


async def test_a_cancel_ends_the_run_at_once_and_later_closes_its_generator() -> None:
    go_on, closed = threading.Event(), threading.Event()

    def blocking(turn: Turn) -> Iterator[str]:
        try:
            yield "so far"
            go_on.wait(60)
            yield "too late"
            raise AssertionError("it goes on after the cancel")
        finally:
            closed.set()

    stage = Stage(FunctionEngine(blocking))
    await stage.start()
    await stage.until(lambda: _has_streamed(stage))
    await stage.core.admission.cancel("enough", "run")
    outcome = await stage.outcome()
    assert outcome.run.state == "cancelled" and not closed.is_set()
    go_on.set()
    assert await asyncio.to_thread(closed.wait, 60)
    outcome = await stage.outcome()
    assert outcome.turn and outcome.turn.output == (Text(text="so far", interrupted=True),)


async def test_a_blocking_function_leaves_the_event_loop_free() -> None:
    is_asked = threading.Event()

    def blocking(turn: Turn) -> str:
        is_asked.wait(60)
        return "done"

    stage = Stage(FunctionEngine(blocking))
    await stage.start()
    is_asked.set()  # the loop would not come here
    outcome = await stage.outcome()
    assert outcome.turn and outcome.turn.text == "done"


async def _has_streamed(stage: Stage) -> bool:
    return any(isinstance(event, TextDelta) for event in (await stage.core.reads.events())[0])


# Failures


def broken(turn: Turn) -> str:
    raise ConnectionError("the line broke")


def broken_later(turn: Turn) -> Iterator[str]:
    yield "so far"
    raise ConnectionError("the line broke")


async def broken_async(turn: Turn) -> AsyncIterator[str]:
    yield "so far"
    raise ConnectionError("the line broke")


@pytest.mark.parametrize("function", [broken, broken_later, broken_async])
async def test_what_a_function_raises_fails_its_run_which_keeps_what_was_streamed(function: Callable[..., Any]) -> None:
    outcome = await ran(function)
    assert outcome.run.state == "failed" and outcome.run.why == "ConnectionError: the line broke"
    kept_output = () if function is broken else (Text(text="so far", interrupted=True),)
    assert outcome.turn and outcome.turn.output == kept_output


def numbers(turn: Turn) -> Iterator[int]:
    yield from range(1000)


async def prompts(turn: Turn) -> AsyncIterator[User]:
    yield User(text="I am the user")


def nothing(turn: Turn) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (nothing, "nothing gave None: return or yield text"),
        (numbers, "numbers gave 0: return or yield text"),
        (prompts, "prompts gave a user block: return or yield text, blocks of the assistant"),
        (lambda turn: b"Hello", "gave b'Hello': return"),
        (lambda turn: {"text": "Hello"}, "gave {'text': 'Hello'}: return"),
        (lambda turn: "", "the engine returned no answer"),
        (lambda turn: [], "the engine returned no answer"),
    ],
)
async def test_another_answer_than_text_and_blocks_fails_the_run(function: Callable[..., Any], reason: str) -> None:
    outcome = await ran(function)
    assert outcome.run.state == "failed" and outcome.run.why and reason in outcome.run.why


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"function": "plain"}, "must be a function"),
        ({"function": Speaker}, "must be a function"),
        ({"function": lambda: "Hello"}, r"its parameters are \(\): it must take a turn"),
        ({"function": lambda a, b, c: "Hello"}, "or a turn and the run's context"),
        ({"function": plain, "takes": ["temprature"]}, "must be names among model, temperature"),
        ({"function": plain, "takes": "model"}, "must be names among"),
        ({"function": plain, "tools": [plain]}, "make them with @tool"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        FunctionEngine(**settings)


# Parameters and typed answers


def test_settings_that_the_function_does_not_take_are_refused_by_name() -> None:
    engine = FunctionEngine(plain, takes=["temperature"])
    check_taken(engine, None, {"temperature": 0.5})
    with pytest.raises(InvalidInputError, match=r"seed.*takes="):
        check_taken(engine, None, {"temperature": 0.5, "seed": 1})
    with pytest.raises(InvalidInputError, match=r"model.*takes="):
        check_taken(engine, "large", {})


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def test_a_typed_answer_is_checked_and_sent_back_to_the_function() -> None:
    def typed(turn: Turn, context: RunContext) -> str:
        assert context.output_type
        (name,) = context.output_type["schema"]["required"]
        return json.dumps({name: "Paris"}) if turn.output else '{"town": "Paris"}'

    stage = Stage(FunctionEngine(typed))
    await stage.start(output={"schema": CITY, "retries": 1})
    outcome = await stage.outcome()
    assert outcome.run.state == "completed" and outcome.turn and outcome.turn.text == '{"city": "Paris"}'
    assert [block.is_error for block in outcome.turn.output if isinstance(block, ToolResult)] == [True]


async def test_a_memory_can_ask_the_function_for_json_of_a_schema() -> None:
    output_types: list[Mapping[str, Any] | None] = []

    async def typed(turn: Turn, context: RunContext) -> str:
        output_types.append(context.output_type)
        return f"{turn.blocks[-1].text} {context.run_id}"  # type: ignore[union-attr]

    model = EngineModel(FunctionEngine(typed))
    assert await model.answer([User(text="Which city?")], schema=CITY) == "Which city? aside"
    assert output_types[0] and output_types[0]["schema"]["required"] == ("city",)
    await model.answer([User(text="Which city?")])
    assert output_types[1] is None
    assert model.is_typed and not EngineModel(EchoEngine()).is_typed


async def test_a_memory_whose_engine_gives_no_typed_answers_asks_it_once_for_a_turn() -> None:
    """The engine's answers are read all the same; the usage of all calls adds up."""
    prompts: list[str] = []

    class Untyped:
        """An engine without `answering`."""

        def __init__(self, function: FunctionEngine) -> None:
            self.build = function.build

    def extract(turn: Turn) -> str:
        prompts.append(str(turn.blocks[-1].text))  # type: ignore[union-attr]
        claims = [line for line in prompts[-1].split("\n") if line.startswith('{"claim"')]
        facts = [{"text": "Likes figs", "type": "facts", "evidence": "like figs"}]
        return json.dumps({"c1": True} if claims else {"facts": facts})

    message = MemoryItem(id="1", text="x", blocks=(User(text="I like figs."),))
    for builder, calls in ((FunctionEngine(extract), 2), (Untyped(FunctionEngine(extract)), 1)):
        prompts.clear()
        model = EngineModel(builder)
        memory = ExtractiveMemory(model, InMemoryItems())
        await memory.remember(Scope(user_id="u"), [message])
        assert [item.text for item in await memory.recall(Scope(user_id="u"), "figs")] == ["Likes figs"]
        assert len(prompts) == model.usage.calls == memory.stats["calls"] == calls


def test_engines_of_one_function_are_the_same_engine() -> None:
    def other(turn: Turn) -> str:
        return "other"

    assert identity(FunctionEngine(plain)) == identity(FunctionEngine(plain))
    assert len({identity(FunctionEngine(function)) for function in (plain, coroutine, other)}) == 3
    assert identity(FunctionEngine(plain, takes=["seed"])) != identity(FunctionEngine(plain))
