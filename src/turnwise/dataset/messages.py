"""Turns as messages of OpenAI's fine-tuning, and of Hugging Face's TRL; each text is redacted before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from turnwise.dataset.selection import DatasetFormat, Selection
from turnwise.dataset.turns import UsableTurn
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import AnyBlock, System, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.output_type import ANSWER_TOOL
from turnwise.memory.providers.openai_chat import encode
from turnwise.memory.values.frozen_json import FrozenDict, freeze

Example = dict[str, Any]
"""One example: a JSON object of the format."""

LEFT_OUT = "[left out]"
"""The text in place of a tool's result that does not come along."""


class DroppedExampleError(Exception):
    """The function that redacts texts wants the example left out."""


def spoken(turn: UsableTurn) -> list[AnyBlock]:
    """Return what people see of a turn: system prompts, prompts, and the answers without what leads to them."""
    blocks: list[AnyBlock] = []
    answered: list[Text] = []
    for block in turn.blocks:
        if isinstance(block, Text):
            answered.append(block)
        elif isinstance(block, ToolUse | ToolResult):
            answered = []  # what the model says before it calls a tool is no answer
        elif isinstance(block, System | User):
            blocks += [*answered, block]
            answered = []
    return [*blocks, *answered]


def traced(turn: UsableTurn, *, results: bool) -> list[AnyBlock]:
    """Return what people see of a turn, with the tool calls and their results.

    Args:
        results: whether the results have their text.
    """
    blocks: list[AnyBlock] = []
    sent_back = {block.call_id for block in turn.blocks if isinstance(block, ToolUse) and block.name == ANSWER_TOOL}
    for block in turn.blocks:
        if isinstance(block, ToolUse | ToolResult) and block.call_id in sent_back:
            continue  # an answer of another type than was asked for
        if isinstance(block, ToolResult):
            text = block.plain if results else LEFT_OUT
            blocks.append(ToolResult(call_id=block.call_id, text=text, is_error=block.is_error))
        elif isinstance(block, System | User | Text | ToolUse):
            blocks.append(block)
    return blocks


def has_answer(blocks: Iterable[AnyBlock]) -> bool:
    """Return whether there is an answer among the blocks."""
    return any(isinstance(block, Text) and block.text.strip() for block in blocks)


def messages_of(blocks: Sequence[AnyBlock], selection: Selection, *, begins: bool = True) -> list[dict[str, Any]]:
    """Return blocks as messages, redacted, without the names of authors.

    Args:
        begins: whether a conversation begins with them, and so with the selection's own system prompt.

    Raises:
        DroppedExampleError: a text must not come along.
    """
    redact = _redact(selection.redact)
    kept = [_redacted(block, redact) for block in blocks if not isinstance(block, System) or selection.system is True]
    if begins and isinstance(selection.system, str):
        kept.insert(0, System(text=selection.system))
    messages: list[dict[str, Any]] = []
    for message in encode(kept):
        last = messages[-1] if messages else {"role": ""}
        if message["role"] == last["role"] == "user":
            last["content"] += "\n\n" + message["content"]  # many chat templates want roles that alternate
        else:
            messages.append(message)
    return [_of_trl(message, messages) for message in messages] if selection.format == "trl" else messages


def tools_of(declared: Iterable[Mapping[str, Any]], blocks: Iterable[AnyBlock]) -> list[dict[str, Any]]:
    """Return the declarations of tools, each once; a tool that is called and not declared has arguments of any kind."""
    tools: dict[str, dict[str, Any]] = {}
    for tool in declared:
        function = tool.get("function") if isinstance(tool.get("function"), Mapping) else tool
        if function and tool.get("type", "function") == "function" and isinstance(name := function.get("name"), str):
            fields = {key: function[key] for key in ("name", "description", "parameters") if key in function}
            tools.setdefault(name, {"type": "function", "function": json.loads(json.dumps(fields))})
    for block in blocks:
        if isinstance(block, ToolUse):
            schema = {"type": "object", "properties": {name: {} for name in block.input}}
            unknown = {"type": "function", "function": {"name": block.name, "parameters": schema}}
            tools.setdefault(block.name, unknown)
    return list(tools.values())


def preference(
    prompt: list[dict[str, Any]], better: list[dict[str, Any]], worse: list[dict[str, Any]], format: DatasetFormat
) -> Example:
    """Return the example of a better and a worse answer."""
    if format == "trl":
        return {"prompt": prompt, "chosen": better, "rejected": worse}
    return {"input": {"messages": prompt}, "preferred_output": better, "non_preferred_output": worse}


def _of_trl(message: dict[str, Any], messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a message as chat templates take it: arguments as objects, and results with the name of their tool."""
    if message["role"] == "tool":
        calls = [call for other in messages for call in other.get("tool_calls", ())]
        names = [call["function"]["name"] for call in calls if call["id"] == message["tool_call_id"]]
        return {"role": "tool", "name": names[-1] if names else "", "content": message["content"]}
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [
        {"type": "function", "function": {"name": of["name"], "arguments": json.loads(of["arguments"])}}
        for of in functions
    ]
    return {"role": message["role"], "content": message["content"] or "", "tool_calls": calls}


Redact = Callable[[str], str]


def _redact(redact: Callable[[str], str | None] | None) -> Redact:
    """Return a function that redacts a text, and refuses what the caller's function returns if it is no text."""

    def redacted(text: str) -> str:
        if redact is None or not text:
            return text
        changed = redact(text)
        if changed is None:
            raise DroppedExampleError
        if not isinstance(changed, str):
            raise InvalidInputError("redact", shown(changed), "it must return a text, or None to leave an example out")
        return changed

    return redacted


def _redacted(block: AnyBlock, redact: Redact) -> AnyBlock:
    match block:
        case User():
            return User(text=redact(block.text))
        case ToolUse():
            return ToolUse(call_id=block.call_id, name=block.name, input=freeze(_values(block.input, redact)))
        case System() | Text() | ToolResult():
            return block.model_copy(update={"text": redact(block.text)})
        case _:
            raise TypeError(f"{block.kind} is no block of an example")


def _values(value: Any, redact: Redact) -> Any:
    """Return JSON with each value in it redacted. The names of its fields stay, as the tool declares them.

    Numbers are redacted as their text in JSON; a number that is changed becomes the text.
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        changed = redact(text := json.dumps(value))
        return value if changed == text else changed
    if isinstance(value, Mapping):
        return FrozenDict({name: _values(inner, redact) for name, inner in value.items()})
    if isinstance(value, Sequence):
        return tuple(_values(inner, redact) for inner in value)
    return value
