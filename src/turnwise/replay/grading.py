"""`Grader`: gives an answer a number, by a function or by a model that compares it with the recorded one."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from turnwise.actors.inference.completion import CompletionContext, ask
from turnwise.actors.inference.engine import EngineBuilder, SessionView, Structured
from turnwise.errors import ConfigError, shown
from turnwise.memory.conversation.blocks import Block, System, User, answer_text
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.growing_text import whole
from turnwise.replay.records import Answer, TurnReplay


class Grader(Protocol):
    """Gives answers numbers, of which a summary has the mean. Higher is better."""

    @property
    def name(self) -> str:
        """The name of the number."""

    async def grade(self, replay: TurnReplay, answer: Answer) -> float | None:
        """Return the number of an answer; None if it has none, so that it is left out.

        What it raises leaves the turn without this grade, and is in `TurnReplay.grader_errors`.

        Args:
            replay: the turn, with its prompt and the recorded answer.
            answer: the answer to grade: `replay.answer` or `replay.floor`.
        """


@dataclass(frozen=True)
class FunctionGrader:
    """Grades by a function of the turn and the answer, such as whether a text has a source.

    It may be a coroutine function. An error of it leaves the turn without this grade, and is counted.
    """

    name: str
    function: Callable[[TurnReplay, Answer], float | Awaitable[float | None] | None]

    async def grade(self, replay: TurnReplay, answer: Answer) -> float | None:
        """See `Grader.grade`."""
        result = self.function(replay, answer)
        grade = await result if inspect.isawaitable(result) else result
        return None if grade is None else float(grade)


Better = Literal["first", "second", "neither"]

_SCHEMA = {
    "type": "object",
    "properties": {
        "why": {"type": "string", "description": "One or two sentences, before the verdict."},
        "better": {"type": "string", "enum": ["first", "second", "neither"]},
    },
    "required": ["why", "better"],
    "additionalProperties": False,
}

_TASK = """\
You compare two answers to the same message of a user. Judge by this rubric only:

{rubric}

The order of the answers is random and means nothing. Length and politeness count only if the rubric says so.
Answer with a JSON object: "why", then "better", which is "first", "second" or "neither"."""


@dataclass(frozen=True)
class ModelGrader:
    """Has a model compare an answer with the recorded one, by a rubric, in both orders.

    The number is 1 if the answer is better than the recorded one, -1 if it is worse, and 0 if neither is, or if the
    model's verdict depends on the order. The order of the first question is random, by the seed. What the questions
    cost is in no answer's usage. A question that fails raises, which leaves the turn without this grade.

    Raises:
        ConfigError: the engine cannot answer in JSON of a schema.
    """

    name: str
    engine: EngineBuilder
    rubric: str
    seed: int = 0
    view: SessionView = field(
        default=SessionView(session_id="grading", user_id="grading", agent=None, metadata=FrozenDict()), repr=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.engine, Structured):
            reason = "it cannot answer in JSON of a schema: it has no answering(), see Structured"
            raise ConfigError("engine", type(self.engine).__name__, reason)

    async def grade(self, replay: TurnReplay, answer: Answer) -> float | None:
        """See `Grader.grade`."""
        order = [True, False]
        random.Random(f"{self.seed} {replay.user_id} {replay.session_id} {replay.turn_index}").shuffle(order)  # noqa: S311
        verdicts = [await self._verdict(replay, answer, is_first=is_first) for is_first in order]
        numbers = set(verdicts)
        return numbers.pop() if len(numbers) == 1 else 0.0

    async def _verdict(self, replay: TurnReplay, answer: Answer, *, is_first: bool) -> float:
        """Return 1, -1 or 0, by the model's verdict on one order.

        Raises:
            TurnwiseError: the model cannot be asked.
            ValueError: its answer is no verdict.
        """
        pair = [answer, replay.recorded] if is_first else [replay.recorded, answer]
        texts = [f"The {word} answer:\n{_shown(each)}" for word, each in zip(("first", "second"), pair, strict=True)]
        question = "\n\n".join([f"The user's message:\n{replay.prompt}", *texts])
        blocks: Sequence[Block] = [System(text=_TASK.format(rubric=self.rubric)), User(text=whole(question))]
        context = CompletionContext(self.view, _no_bill)
        output = answer_text(await ask(self.engine, blocks, context, _off_loop, 2.0, schema=_SCHEMA))
        try:
            better = json.loads(output)["better"]
        except (ValueError, KeyError, TypeError):
            better = None
        if better not in ("first", "second", "neither"):
            raise ValueError(f"the model's answer is no verdict: {shown(output)}")
        if better == "neither":
            return 0.0
        return 1.0 if (better == "first") is is_first else -1.0


def _shown(answer: Answer) -> str:
    """Return an answer as the model gets it: its calls, then its text."""
    calls = [f"[called {call.name} with {json.dumps(call.arguments)}]" for call in answer.calls]
    return "\n".join([*calls, answer.text or f"[no answer: {answer.why or answer.status}]"])


def _no_bill(usage: Usage, model: str | None) -> None:
    """Charge nobody."""


async def _off_loop(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(function, *args)
