"""`ScriptedEngine`: an engine that gives the answers of a script, for tests of agents."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeAlias, cast

from turnwise.actors.inference.engine import InferenceRunner, SessionView
from turnwise.actors.inference.function_engine import FunctionEngine, Piece, registry_of
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool
from turnwise.errors import ConfigError, EngineError
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, ToolUse
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.required_arguments import needs


@dataclass(frozen=True)
class Pause:
    """A pause within a scripted answer, in seconds. `math.inf`: until the run is cancelled or times out."""

    seconds: float


Part: TypeAlias = str | Block | tuple[str, Mapping[str, Any]] | Pause | Exception | type[Exception]
"""A part of an answer: a text; a block, such as `Thinking`; a tool's name and its arguments; a pause; or an error that
is raised."""

ScriptedAnswer: TypeAlias = Part | Sequence[Part]


@needs(script="pass the answers, such as ScriptedEngine(['Hello.'])")
@dataclass(frozen=True)
class ScriptedEngine:
    """Gives the answers of a script in order, one at each call of the model: no key, no network, no model.

        ScriptedEngine(
            [
                [Thinking(text="Hm."), ("weather", {"city": "Paris"})],  # a tool call
                "Take an umbrella.",
                ["Let me", ConnectionError("the line broke")],  # a failure in the middle of an answer
                [Pause(math.inf)],  # an answer that never comes
            ],
            tools=[weather],
        )

    A session begins with the first answer. An answer that failed is not repeated: the next call gets the next one.
    A new process of the session, a fork, and a memory or strategy whose model this is, go on after the answers that the
    conversation holds.

    It takes all model parameters, and they change nothing. Answers of runs with `output=` are checked as usual. It
    reports words as tokens.

    Args:
        script: at least one answer, each one part or a sequence of parts.
        tools: the tools that the answers may call.
        repeat: whether the script begins anew after its last answer; else a further call fails with EngineError.
        word_s: the pause before each word of a text, in seconds.

    Raises:
        ConfigError: the script is empty, a part of it is none of the above, or a setting is out of its range.
    """

    script: Sequence[ScriptedAnswer]
    _: KW_ONLY
    tools: ToolRegistry | Sequence[Tool] = ()
    repeat: bool = False
    word_s: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.script, str) or not isinstance(self.script, Sequence) or not self.script:
            raise ConfigError("script", self.script, "must be a list of at least one answer")
        answers = tuple(map(_parts, self.script))
        for index, answer in enumerate(answers):
            if not answer or not all(map(_is_part, answer)):
                reason = "must be texts, blocks of the assistant, (tool, arguments), Pause or exceptions, at least one"
                raise ConfigError(f"script[{index}]", self.script[index], reason)
        if not self.word_s >= 0:
            raise ConfigError("word_s", self.word_s, "must be 0 or more seconds")
        object.__setattr__(self, "script", answers)
        object.__setattr__(self, "tools", registry_of(self.tools))

    def answering(self, schema: Mapping[str, Any]) -> ScriptedEngine:
        """See `Structured`. The script's answers are given as they are."""
        return replace(self, tools=())

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`."""
        return {}

    def build(self, session: SessionView) -> InferenceRunner:
        """Return a runner that is at the beginning of the script."""
        return FunctionEngine(_Player(self).play, tools=self.tools).build(session)


@dataclass(frozen=True)
class RecordingEngine(ScriptedEngine):
    """A `ScriptedEngine` that records what it is given, for sessions of the test's own process (`InProcess`).

    Args:
        calls: receives the turn of each call of the model, whose `blocks` are what the model gets.
    """

    _: KW_ONLY
    calls: list[Turn] = field(default_factory=list, repr=False)

    def build(self, session: SessionView) -> InferenceRunner:
        """See `ScriptedEngine.build`."""
        player = _Player(self)

        async def play(turn: Turn) -> AsyncIterator[Piece]:
            self.calls.append(turn)
            async with aclosing(player.play(turn)) as pieces:
                async for piece in pieces:
                    yield piece

        return FunctionEngine(play, tools=self.tools).build(session)


class _Player:
    """Plays the script for one session."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._script = cast(Sequence[Sequence[Part]], engine.script)
        self._repeat = engine.repeat
        self._word_s = engine.word_s
        self._next = 0

    async def play(self, turn: Turn) -> AsyncGenerator[Piece]:
        position = max(self._next, self._position(turn))
        self._next = position + 1
        if position >= len(self._script) and not self._repeat:
            reason = f"the script has {len(self._script)} answers, and the model is called once more"
            raise EngineError(f"{reason}: add an answer, or pass repeat=True")
        tokens = 0
        for number, part in enumerate(self._script[position % len(self._script)]):
            match part:
                case Pause():
                    await (asyncio.Event().wait() if math.isinf(part.seconds) else asyncio.sleep(part.seconds))
                case Exception() | type():
                    raise part
                case (str(name), arguments):
                    tokens += 1
                    yield ToolUse(call_id=f"call_{position}_{number}", name=name, input=dict(arguments))
                case str() | Text():
                    for word in _words(part if isinstance(part, str) else part.text):
                        if self._word_s:
                            await asyncio.sleep(self._word_s)
                        tokens += 1
                        yield word
                case Block():
                    yield part
        yield Usage(input_tokens=sum(map(_size, turn.blocks)), output_tokens=tokens)

    def _position(self, turn: Turn) -> int:
        """Return the place after the answers that the conversation holds, before any that leave nothing in it."""
        leave = [any(not isinstance(part, Pause | Exception | type) for part in answer) for answer in self._script]
        held = sum(message.role == "assistant" for message in messages_of(turn.blocks)) if any(leave) else 0
        position = 0
        while held:
            held -= leave[position % len(leave)]
            position += 1
        return position


def _parts(answer: ScriptedAnswer) -> tuple[Any, ...]:
    is_whole = _is_part(answer) or not isinstance(answer, Sequence)
    return (answer,) if is_whole else tuple(cast(Sequence[Part], answer))


def _is_part(part: object) -> bool:
    match part:
        case (str(name), Mapping() as arguments):
            try:
                ToolUse(call_id="call", name=name, input=dict(arguments))
            except ValueError:
                return False
            return bool(name)
        case type():
            return issubclass(part, Exception)
        case Pause():
            return part.seconds >= 0
        case Block():
            return part.role == "assistant"
        case _:
            return isinstance(part, str | Exception)


def _words(text: str) -> list[str]:
    """Return the text's words, each with the space after it."""
    return re.findall(r"\S+\s*|\s+", text)


def _size(block: AnyBlock) -> int:
    return len(_words(getattr(block, "text", None) or ""))
