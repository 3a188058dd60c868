"""Reads the arguments that a model wrote for a tool call, and says what is wrong with those that are no JSON object.

A call with such arguments reaches no tool: `ToolUse.flaw` says why, and `refusal` is what the model gets for it. Its
`input` has what the model wrote, as text, so that a history with the call is valid for each provider and the model sees
what it had sent.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pydantic_core

from turnwise.memory.conversation.blocks import ToolResult, ToolUse
from turnwise.memory.values.frozen_json import MAX_DEPTH, FrozenDict, freeze, is_deeper
from turnwise.memory.values.growing_text import whole

UNPARSED = "unparsed"
"""The only name in the input of a call whose arguments are no JSON object; its value is what the model wrote."""

_NOTHING = ("", "null")

_AROUND = 24
"""How many characters before and behind the place of a mistake are quoted."""

_PLACE = re.compile(r" at line (\d+) column (\d+)$")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.DOTALL)
_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*', re.DOTALL)


class _FlawError(ValueError):
    """What is wrong with a text, and where: the index of a character."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.position = reason, position


def read_call(
    call_id: str, name: str, arguments: str, *, is_cut: bool = False, signature: str | None = None
) -> ToolUse:
    """Return a call, with a `flaw` if its arguments are no JSON object. O(arguments).

    An empty text, and `null`, are an empty object: providers send them for tools without parameters.

    Args:
        is_cut: whether the answer ended at its maximum length, so that the arguments may lack their end.
    """
    text = whole(arguments)
    try:
        frozen_input = FrozenDict() if text.strip() in _NOTHING and not is_cut else _object(text)
        return ToolUse(call_id=call_id, name=name, input=frozen_input, signature=signature)
    except _FlawError as error:
        flaw = f"{error.reason}, at {_place(text, error.position)}"
    if is_cut:
        flaw += "; the answer ended at its maximum length, so they may have been cut off: make shorter ones"
    return ToolUse(call_id=call_id, name=name, input=FrozenDict({UNPARSED: text}), flaw=flaw, signature=signature)


def refusal(use: ToolUse) -> ToolResult | None:
    """Return what the model gets for a call with a flaw; None for a call without one."""
    if use.flaw is None:
        return None
    text = f"{use.name!r} was not called, since the arguments are no JSON object: {use.flaw}. Call it with one object."
    return ToolResult(call_id=use.call_id, text=text, is_error=True)


def _object(text: str) -> FrozenDict:
    """Return the object that a text is, frozen. Raises _FlawError."""
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _mistake(text, str(error)) from None
    if not isinstance(value, dict):
        kinds = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
        raise _FlawError(f"it is {kinds.get(type(value), 'a number')}", len(text) - len(text.lstrip()))
    _check_names(text)
    try:
        frozen: FrozenDict = freeze(value)
    except TypeError:  # a number such as 1e999
        raise _FlawError("a number is out of range", _huge_number(text)) from None
    if is_deeper(frozen, MAX_DEPTH):
        raise _FlawError(f"it is nested more than {MAX_DEPTH} levels deep", _too_deep(text))
    return frozen


def _mistake(text: str, message: str) -> _FlawError:
    """Return the parser's error. Its column counts bytes."""
    match = _PLACE.search(message)
    if match is None or message.startswith("EOF"):
        return _FlawError(message if match is None else message[: match.start()], len(text))
    lines = text.split("\n")[: int(match[1])]
    column = len(lines[-1].encode()[: max(int(match[2]) - 1, 0)].decode(errors="ignore"))
    return _FlawError(message[: match.start()], min(sum(len(line) + 1 for line in lines[:-1]) + column, len(text)))


def _check_names(text: str) -> None:
    """Raise _FlawError if an object in a valid JSON text has a name twice: it is unclear which value is meant."""
    twins = False

    def count(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twins
        twins = twins or len(dict(pairs)) < len(pairs)

    json.loads(text, object_pairs_hook=count)
    if not twins:
        return
    names: list[set[str] | None] = []
    """Those of each object that is open; None for a list."""
    last, start = "", 0
    for token in _TOKEN.finditer(text):
        kind = token[0]
        if kind in "{[":
            names.append(set() if kind == "{" else None)
        elif kind in "}]":
            names.pop()
        elif kind == ":" and (names_before := names[-1]) is not None:
            name = json.loads(last)
            if name in names_before:
                raise _FlawError(f"the name {name[:_AROUND]!r} comes twice in one object", start)
            names_before.add(name)
        last, start = kind, token.start()


def _too_deep(text: str) -> int:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            return token.start()
    return 0


def _huge_number(text: str) -> int:
    for token in _NUMBER.finditer(text):
        if token[0][0] != '"' and float(token[0]) in (float("inf"), float("-inf")):
            return token.start()
    return 0


def _place(text: str, position: int) -> str:
    """Return the place of a character, and what stands around it."""
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    first, last = max(position - _AROUND, 0), position + _AROUND
    excerpt = f"{'…' if first else ''}{text[first:last]}{'…' if last < len(text) else ''}"
    return f"line {line}, column {column} (character {position} of {len(text)}), near {excerpt!r}"
