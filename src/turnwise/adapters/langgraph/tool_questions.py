"""Gives each call of a tool node the answers to its own interrupts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, cast

from turnwise.adapters.version_checks import expect, framework

with framework("langgraph", extra="langgraph", tested="1.2"):
    from langgraph._internal._constants import (
        CONFIG_KEY_CALL,
        CONFIG_KEY_CHECKPOINT_NS,
        CONFIG_KEY_SCRATCHPAD,
        CONFIG_KEY_SEND,
        RESUME,
    )
    from langgraph._internal._scratchpad import PregelScratchpad
    from langgraph.errors import GraphInterrupt
    from langgraph.types import Interrupt, _interrupt_id

    expect(PregelScratchpad, "resume", "interrupt_counter", "subgraph_counter", "call_counter")
    expect(_interrupt_id, "ns", "answered")

_CALL, _VALUE = "turnwise_call", "value"

_NUMBERS: ContextVar[Callable[[], int] | None] = ContextVar("turnwise_langgraph_numbers", default=None)
"""Gives numbers to the functional API's tasks that the current tool call starts."""


@dataclass(frozen=True)
class Question:
    """An interrupt that waits for its answer."""

    id: str
    value: Any
    schema: Any = None
    call_id: str | None = None
    """The call of a tool node that asks it, by its id in the transcript; None for every other interrupt."""

    @classmethod
    def of(cls, interrupt: Any) -> Question:
        """Return LangGraph's interrupt as a question."""
        call_id, value = _unlabelled(interrupt.value)
        return cls(interrupt.id, value, getattr(interrupt, "response_schema", None), call_id)

    def answer(self, value: Any) -> Any:
        """Return what LangGraph gets as the answer, so that only the call that asked finds it."""
        return value if self.call_id is None else _labelled(self.call_id, value)


class CallQuestions:
    """The interrupts of one tool call, apart from those of the other calls of its node.

    LangGraph numbers the interrupts of a node, and hands answers out by number. All calls of a `ToolNode` are one node.
    A call that is not made again, because its result is recorded, would leave its numbers to the other calls, and calls
    that await may ask in another order each time: an answer would reach a tool that did not ask. So questions and
    answers name their call here, and each call gets a list of its own. Subgraphs and tasks, by whose numbers LangGraph
    finds their state, get numbers that depend on the call's number alone.
    """

    def __init__(self, config: Mapping[str, Any], call_id: str, *, number: int, count: int) -> None:
        """Change the config of one call.

        Args:
            config: what the tool gets; its `configurable` is the call's own.
            number: the number of the call among the calls of its message, from 0.
            count: how many calls the message has.
        """
        configurable: MutableMapping[str, Any] = config["configurable"]
        scratchpad: PregelScratchpad = configurable[CONFIG_KEY_SCRATCHPAD]
        self._call_id = call_id
        self._namespace: str = configurable[CONFIG_KEY_CHECKPOINT_NS]
        self._send: Callable[[Sequence[tuple[str, Any]]], Any] = configurable[CONFIG_KEY_SEND]
        self._node = _Node.of(scratchpad)
        self._positions = self._node.answers_to(call_id)
        self._answers = [_unlabelled(self._node.answers[position])[1] for position in self._positions]
        configurable[CONFIG_KEY_SEND] = self._send_for_call
        configurable[CONFIG_KEY_SCRATCHPAD] = replace(
            scratchpad,
            resume=self._answers,
            interrupt_counter=itertools.count().__next__,
            subgraph_counter=itertools.count(number, count).__next__,
        )
        if CONFIG_KEY_CALL in configurable:
            numbers = itertools.count(number, count).__next__
            configurable[CONFIG_KEY_CALL] = _numbered(scratchpad, configurable[CONFIG_KEY_CALL], numbers)

    def keep(self, count: int | None = None) -> None:
        """Have the first of the call's answers stored with the node's next interrupt; all of them by default."""
        if positions := self._positions[:count]:
            self._node.stored_answers = max(self._node.stored_answers, positions[-1] + 1)
            self._send([(RESUME, self._node.answers[: self._node.stored_answers])])

    def raised(self, error: GraphInterrupt) -> GraphInterrupt:
        """Return the error to raise for an interrupt of the call: it names the call, and is numbered as its node's."""
        answers = self._node.answers
        own, numbered = (_interrupt_id(self._namespace, len(some_answers)) for some_answers in (self._answers, answers))
        if answers:
            self._node.stored_answers = len(answers)
            self._send([(RESUME, list(answers))])  # an interrupt's id says how many answers are stored before it
        interrupts: Sequence[Any] = error.args[0] if error.args else ()
        return GraphInterrupt(
            tuple(
                Interrupt(
                    value=_labelled(self._call_id, interrupt.value),
                    id=numbered,
                    response_schema=interrupt.response_schema,
                )
                if interrupt.id == own
                else interrupt  # of a subgraph, which keeps its own answers
                for interrupt in interrupts
            )
        )

    def _send_for_call(self, writes: Sequence[tuple[str, Any]]) -> None:
        """Pass a node's writes on; the answers that the call has used are stored among the node's."""
        if others_writes := [write for write in writes if write[0] != RESUME]:
            self._send(others_writes)
        for _, used in [write for write in writes if write[0] == RESUME]:
            self.keep(len(used))


def _numbered(
    scratchpad: PregelScratchpad, start: Callable[..., Any], numbers: Callable[[], int]
) -> Callable[..., Any]:
    """Return the function that starts tasks of the functional API, whose tasks get these numbers."""
    if not isinstance(scratchpad.call_counter, _Numbers):
        object.__setattr__(scratchpad, "call_counter", _Numbers(scratchpad.call_counter))

    def numbered(*args: Any, **named: Any) -> Any:
        token = _NUMBERS.set(numbers)
        try:
            return start(*args, **named)
        finally:
            _NUMBERS.reset(token)

    return numbered


@dataclass(slots=True)
class _Node:
    """The answers of one node, and the number of its next interrupt outside of its tool calls, which skips theirs."""

    answers: Sequence[Any]
    next: int
    stored_answers: int = 0
    """How many answers are stored with the next interrupt. One that its interrupt refuses is not."""

    @classmethod
    def of(cls, scratchpad: PregelScratchpad) -> _Node:
        """Return what all calls of a node share. It takes the place of the node's counter."""
        if not isinstance(scratchpad.interrupt_counter, cls):
            own = cls(scratchpad.resume, scratchpad.interrupt_counter())
            object.__setattr__(scratchpad, "interrupt_counter", own)
        return cast(_Node, scratchpad.interrupt_counter)

    def answers_to(self, call_id: str) -> list[int]:
        """Return the positions of the answers to a call."""
        return [index for index, answer in enumerate(self.answers) if _unlabelled(answer)[0] == call_id]

    def __call__(self) -> int:
        while self.next < len(self.answers) and _unlabelled(self.answers[self.next])[0] is not None:
            self.next += 1
        self.next += 1
        return self.next - 1


@dataclass(frozen=True)
class _Numbers:
    """Numbers the tasks of a node: those that a call starts by the call's numbers, others as before."""

    theirs: Callable[[], int]

    def __call__(self) -> int:
        return (_NUMBERS.get() or self.theirs)()


def _labelled(call_id: str, value: Any) -> dict[str, Any]:
    return {_CALL: call_id, _VALUE: value}


def _unlabelled(value: Any) -> tuple[str | None, Any]:
    if isinstance(value, Mapping) and value.keys() == {_CALL, _VALUE}:
        return value[_CALL], value[_VALUE]
    return None, value
