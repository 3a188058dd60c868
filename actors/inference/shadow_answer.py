"""A candidate's answer to the request of a run that has ended: its tools are not called, but answered from the run."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pydantic_core

from turnwise.actors.inference.completion import CompletionContext, ask_turn
from turnwise.actors.inference.engine import EngineBuilder, SessionView, Steerable
from turnwise.errors import EngineError
from turnwise.memory.conversation.blocks import Block, ToolResult, ToolUse, answer_text
from turnwise.memory.conversation.calls.call_pairs import CallPairs
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.model_usage import Bill

MAX_STEPS = 20
"""How often a candidate is asked for one answer."""


@dataclass
class BesideAnswer:
    """What a candidate has answered so far."""

    text: str = ""
    calls: list[ToolUse] = field(default_factory=list)
    """The calls that it wanted, in order."""
    missing: list[ToolUse] = field(default_factory=list)
    """Those of them that the run has not made, so that they have no result."""


class ResultsOfRun:
    """The results of the tool calls of a run, by name and arguments. Each is used once."""

    def __init__(self, output: Iterable[Block]) -> None:
        pairs: CallPairs[ToolUse] = CallPairs()
        self._results: dict[str, deque[ToolResult]] = {}
        for block in output:
            if isinstance(block, ToolUse):
                pairs.call(block.call_id, block)
            elif isinstance(block, ToolResult) and (use := pairs.answer(block.call_id)):
                self._results.setdefault(_key(use), deque()).append(block)

    def take(self, use: ToolUse) -> ToolResult | None:
        """Return the result of a call with the same name and arguments; None if there is none left."""
        results = self._results.get(_key(use))
        return results.popleft().model_copy(update={"call_id": use.call_id}) if results else None


async def answer_beside(
    candidate: EngineBuilder,
    request: Turn,
    output: Sequence[Block],
    record: RunRecord,
    answer: BesideAnswer,
    *,
    session: SessionView,
    bill: Bill,
    off_loop: Callable[..., Awaitable[Any]],
    grace_s: float,
) -> None:
    """Have a candidate answer a request, and put into `answer` what it says, as it comes.

    Args:
        request: what the run's model was given.
        output: what the run has added, whose results answer the candidate's calls.

    Raises:
        Exception: any error of the candidate.
    """
    results = ResultsOfRun(output)
    added: list[Block] = []
    for _ in range(MAX_STEPS):
        turn = request.answered(added)
        context = _Beside(session, bill, record, candidate)
        try:
            answer.text = answer_text(await ask_turn(candidate, turn, context, off_loop, grace_s))
        except _CallsTools as wanted:
            context.count(turn.blocks, wanted.answer, is_whole=True)
            uses = [block for block in wanted.answer if isinstance(block, ToolUse)]
            answer.calls += uses
            taken = [results.take(use) for use in uses]
            answer.missing = [use for use, result in zip(uses, taken, strict=True) if result is None]
            if answer.missing:
                return
            added += [*wanted.answer, *filter(None, taken)]
        else:
            return
    raise EngineError(f"the candidate has not answered after {MAX_STEPS} steps")


class _CallsTools(Exception):  # noqa: N818 - not an error but a way to return
    """Raised when a candidate calls tools, before any is called."""

    def __init__(self, answer: Sequence[Block]) -> None:
        super().__init__()
        self.answer = answer


class _Beside(CompletionContext):
    """The context of a candidate: it has the settings of the run, and stops at a tool call."""

    schedules = None
    files = None

    def __init__(self, session: SessionView, bill: Bill, record: RunRecord, candidate: EngineBuilder) -> None:
        super().__init__(session, bill)
        self.run_id = record.run_id
        self.labels = record.labels
        refused = candidate.not_taken(None, record.params) if isinstance(candidate, Steerable) else record.params
        self.params = {name: value for name, value in record.params.items() if name not in refused}
        self.output_type = record.output
        self.instructions = record.instructions
        self.tools = record.tools

    def end_call(self, answer: Sequence[Block] = ()) -> NoReturn:
        if not any(isinstance(block, ToolUse) for block in answer):
            raise EngineError("the candidate's answer is not of the type that the run asks for")
        raise _CallsTools(answer)

    def event(self, name: str, data: object = None, *, labels: object = None) -> None:
        """Do nothing: the candidate's events belong to no run."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def annotate(self, **values: Any) -> None:
        """Do nothing."""

    def step(self, name: str) -> AbstractContextManager[str]:
        """Return a context manager that does nothing."""
        return nullcontext(name)


def _key(use: ToolUse) -> str:
    return json.dumps([use.name, _plain(use.input)], sort_keys=True)


def call_of(use: ToolUse) -> Mapping[str, Any]:
    """Return a call as records have it."""
    return {"name": use.name, "input": _plain(use.input)}


def _plain(arguments: Mapping[str, Any]) -> Any:
    return json.loads(pydantic_core.to_json(arguments))
