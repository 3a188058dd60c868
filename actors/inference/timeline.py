"""`Timeline`: events that an engine or a tool adds to its run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from turnwise.errors import InvalidIdError, InvalidInputError, shown
from turnwise.memory.conversation.events import CustomEvent, Event, PlannerNote, StepEnded, StepStarted
from turnwise.memory.conversation.runs import FROM_SESSION, LABEL_IS_RESERVED
from turnwise.memory.values.frozen_json import plain_json, plain_text
from turnwise.memory.values.ids import check_id, new_id

MAX_EVENT_BYTES = 1_000_000
"""The largest data or note of an event, in bytes of JSON in UTF-8."""

_STEP: ContextVar[tuple[str, str] | None] = ContextVar("turnwise_step", default=None)
"""The run and the id of the step in which the current task or thread is."""

Add = Callable[[type[Event], Mapping[str, Any]], None]
"""Adds an event to the run. Callable from any thread; does nothing once the run has ended."""


class Timeline:
    """The verbs by which an engine or a tool adds events to its run.

    They return at once, from any thread. The events have the order of the calls. Each is stored with the next commit of
    the run, or in one of its own right away, and is published when it is stored. The run's end stores those that
    remain, before its terminal event.

    Args:
        call_id: the tool call whose events these are.
    """

    __slots__ = ("_add", "_call_id", "_run_id")

    def __init__(self, add: Add, run_id: str, call_id: str | None = None) -> None:
        self._add = add
        self._run_id = run_id
        self._call_id = call_id

    def event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> None:
        """See `StepContext.event`."""
        self._add(CustomEvent, {**custom_event(name, data, labels), "step": self._step})

    def note(self, text: str) -> None:
        """See `StepContext.note`."""
        self._add(PlannerNote, {"text": plain_json("text", _checked_text(text), MAX_EVENT_BYTES), "step": self._step})

    @contextmanager
    def step(self, name: str) -> Iterator[str]:
        """See `StepContext.step`."""
        step, began, is_error = new_id(), time.monotonic(), False
        self._add(StepStarted, {"step": step, "name": _checked_name(name), "parent": self._step})
        entered = _STEP.set((self._run_id, step))
        try:
            yield step
        except BaseException:
            is_error = True
            raise
        finally:
            _STEP.reset(entered)
            seconds = round(time.monotonic() - began, 6)
            self._add(StepEnded, {"step": step, "name": name, "is_error": is_error, "seconds": seconds})

    @property
    def _step(self) -> str | None:
        within = _STEP.get()
        return within[1] if within and within[0] == self._run_id else self._call_id


def custom_event(name: str, data: Mapping[str, Any] | None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the fields of a `CustomEvent`.

    Raises:
        InvalidInputError: the name is no id of 1 to 256 characters, the data is no JSON object, the labels are no
            mapping of texts to texts, one is reserved, or one is too large.
    """
    if data is not None and not isinstance(data, Mapping):
        raise InvalidInputError("data", shown(data), "must be a JSON object: a mapping")
    fields = {"name": _checked_name(name), "data": plain_json("data", data or {}, MAX_EVENT_BYTES)}
    return fields | {"labels": _checked_labels(labels)} if labels else fields


def _checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    is_text = isinstance(labels, Mapping) and all(isinstance(text, str) for pair in labels.items() for text in pair)
    if not is_text:
        raise InvalidInputError("labels", shown(labels), "must be a mapping of texts to texts")
    if FROM_SESSION in labels:
        raise InvalidInputError("labels", shown(labels), LABEL_IS_RESERVED)
    plain: dict[str, str] = plain_json("labels", labels, MAX_EVENT_BYTES)
    return plain


def _checked_name(name: str) -> str:
    try:
        return check_id("event name", name)
    except InvalidIdError as error:
        raise InvalidInputError("name", shown(name), str(error)) from None


def _checked_text(text: str) -> str:
    try:
        return plain_text(text)
    except (TypeError, ValueError):
        raise InvalidInputError("text", shown(text), "must be text without lone surrogates") from None
