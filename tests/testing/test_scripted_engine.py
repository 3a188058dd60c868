"""`ScriptedEngine` in a `SessionCore`, without Ray."""

from __future__ import annotations

import asyncio
import math
import pickle
from typing import Any

import pytest
from test_tool_loop import Stage

from turnwise.actors.hosting.identity import identity
from turnwise.actors.inference.tools.tool import tool
from turnwise.errors import ConfigError, ContextOverflowError
from turnwise.memory.conversation.blocks import Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import TextDelta
from turnwise.memory.conversation.turns import Outcome
from turnwise.testing import Pause, ScriptedAnswer, ScriptedEngine

pytestmark = pytest.mark.virtual_time


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    return f"rain in {city}"


async def say(stage: Stage, prompt: str, **settings: Any) -> Outcome:
    started = await stage.core.admission.start([prompt], run_id=prompt, **settings)
    return await stage.core.reads.wait(started.run_id)


def text(outcome: Outcome) -> str:
    assert outcome.run.state == "completed" and outcome.turn, outcome.run.why
    return outcome.turn.text


async def test_the_answers_come_in_order_in_each_session() -> None:
    engine = ScriptedEngine(["One.", Text(text="Two."), ["Three", "."]])
    for _ in range(2):
        stage = Stage(engine)
        await stage.create()
        assert [text(await say(stage, prompt)) for prompt in "abc"] == ["One.", "Two.", "Three."]
        outcome = await say(stage, "d")
        assert outcome.run.state == "failed"
        assert "the script has 3 answers" in str(outcome.run.why) and "repeat=True" in str(outcome.run.why)


async def test_with_repeat_the_script_begins_anew() -> None:
    stage = Stage(ScriptedEngine(["One.", ValueError("broken"), "Two."], repeat=True))
    await stage.create()
    assert [(await say(stage, prompt)).run.state for prompt in "abcd"] == ["completed", "failed", *["completed"] * 2]
    assert (await say(stage, "e")).run.state == "failed"


async def test_an_agent_thinks_calls_a_tool_and_answers() -> None:
    thinks = Thinking(text="Hm.", signature="s")
    script: list[ScriptedAnswer] = [[thinks, "Let me look.", ("weather", {"city": "Paris"})], "Take an umbrella."]
    outcome = await Stage(ScriptedEngine(script, tools=[weather])).run()
    assert text(outcome) == "Take an umbrella."
    assert outcome.turn
    thought, spoken, use, result, _ = outcome.turn.output
    assert isinstance(use, ToolUse) and use.name == "weather" and use.input == {"city": "Paris"}
    assert thought == thinks and spoken == Text(text="Let me look.")
    assert result == ToolResult(call_id=use.call_id, text="rain in Paris")
    assert outcome.run.usage and outcome.run.usage.calls == 2 and outcome.run.usage.output_tokens == 3 + 1 + 3


async def test_a_failed_answer_is_not_repeated() -> None:
    script: list[ScriptedAnswer] = [
        ["Let me", ConnectionError("the line broke")],
        TimeoutError,
        ["so far", Pause(math.inf)],
        "Here I am.",
    ]
    stage = Stage(ScriptedEngine(script))
    await stage.create()
    cut = await say(stage, "a")
    assert cut.run.why == "ConnectionError: the line broke"
    assert cut.turn and cut.turn.output == (Text(text="Let me", interrupted=True),)
    assert (await say(stage, "b")).run.why == "TimeoutError: "
    late = await say(stage, "c", timeout_s=5)
    assert late.run.state == "failed" and "timeout_s=5" in str(late.run.why)
    assert text(await say(stage, "d")) == "Here I am."


async def test_another_process_goes_on_after_the_answers_that_the_conversation_holds() -> None:
    stage = Stage(ScriptedEngine(["One.", ("weather", {"city": "Ghent"}), "Two.", "Three."], tools=[weather]))
    await stage.create()
    assert text(await say(stage, "a")) == "One."
    stage.new_core()
    assert text(await say(stage, "b")) == "Two."
    stage.new_core()
    assert text(await say(stage, "c")) == "Three."


async def test_words_are_streamed_one_by_one_with_pauses() -> None:
    stage = Stage(ScriptedEngine([[Pause(10), "one two three"]], word_s=1.0))
    began = asyncio.get_running_loop().time()
    assert text(await stage.run()) == "one two three"
    assert asyncio.get_running_loop().time() - began >= 13
    deltas = [event.text for event in (await stage.core.reads.events())[0] if isinstance(event, TextDelta)]
    assert deltas == ["one ", "two ", "three", ""], "the last one says that it is the last"


async def test_a_cancel_stops_a_pause() -> None:
    stage = Stage(ScriptedEngine([["so far", Pause(math.inf)], "Again."]))
    await stage.start()
    await asyncio.sleep(1)
    await stage.core.admission.cancel("enough", "run")
    outcome = await stage.outcome()
    assert outcome.run.state == "cancelled"
    assert outcome.turn and outcome.turn.output == (Text(text="so far", interrupted=True),)
    assert text(await say(stage, "again")) == "Again."


async def test_parameters_and_typed_answers_are_taken() -> None:
    schema = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    stage = Stage(ScriptedEngine(['{"days": "many"}', '{"days": 3}']))
    await stage.start(model="large", params={"temperature": 0.1}, output={"schema": schema, "retries": 1})
    assert text(await stage.outcome()) == '{"days": 3}'


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"script": []}, "at least one answer"),
        ({"script": "Hello."}, "must be a list"),
        ({"script": ["Hello.", 3]}, r"script\[1\]"),
        ({"script": [[]]}, r"script\[0\]"),
        ({"script": ["Hello.", ["Let me", User(text="hi")]]}, r"script\[1\]"),
        ({"script": [("weather", {"city": {1, 2}})]}, r"script\[0\]"),
        ({"script": [Pause(-1)]}, r"script\[0\]"),
        ({"script": [KeyboardInterrupt]}, r"script\[0\]"),
        ({"script": ["Hello."], "word_s": -1}, "0 or more seconds"),
        ({"script": ["Hello."], "tools": [text]}, "make them with @tool"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ScriptedEngine(**settings)


async def test_a_pause_of_no_time_is_a_pause() -> None:
    stage = Stage(ScriptedEngine([[Pause(0), "one"]]))
    assert text(await stage.run()) == "one"


def test_it_pickles_and_is_the_same_engine_afterwards() -> None:
    call: ScriptedAnswer = ("weather", {"city": "Paris"})
    script: list[ScriptedAnswer] = [Thinking(text="Hm."), call, ContextOverflowError("too long"), Pause(1), OSError]
    engine = ScriptedEngine(script, tools=[weather])
    again = pickle.loads(pickle.dumps(engine))
    assert identity(again) == identity(engine) != identity(ScriptedEngine(script))
    assert repr(again) == repr(engine)
