"""Shows blocks as items: messages, reasoning, calls and their outputs."""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.http.openai.ids import output_item_id, prompt_item_id
from turnwise.memory.conversation.blocks import (
    AnyBlock,
    Block,
    Document,
    Image,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    described,
)
from turnwise.memory.conversation.calls.tool_calls import CallState, decode_calls
from turnwise.memory.conversation.output_type import ANSWER_TOOL
from turnwise.memory.conversation.spans import Spans, places
from turnwise.memory.providers.openai_chat import arguments_of, data_uri

Item = dict[str, Any]

SERVER = "turnwise"
"""The `server_label` of calls of tools that the service makes itself."""

ENCRYPTED = "reasoning.encrypted_content"
"""What a request includes to get reasoning that can be sent back."""


def output_text(text: str) -> Item:
    """Return a text of the model as a content part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message(id: str, text: str, status: str = "completed") -> Item:
    """Return a message of the model."""
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": [output_text(text)]}


def reasoning(id: str, thoughts: Sequence[Thinking], *, encrypted: bool, status: str = "completed") -> Item:
    """Return the thoughts of one answer as an item."""
    summary = [{"type": "summary_text", "text": thought.text} for thought in thoughts if thought.text]
    item: Item = {"id": id, "type": "reasoning", "summary": summary, "status": status}
    return {**item, "encrypted_content": pack(thoughts)} if encrypted else item


def function_call(id: str, use: ToolUse, status: str = "completed") -> Item:
    """Return a call that the client makes."""
    item: Item = {"id": id, "type": "function_call", "call_id": use.call_id, "name": use.name}
    return {**item, "arguments": arguments_of(use), "status": status}


def function_call_output(id: str, result: ToolResult) -> Item:
    """Return the output of a call."""
    texts = [Text(text=result.text)] if result.text else []
    output = [_content_part(block) for block in (*texts, *result.blocks)] if result.blocks else result.text
    return {
        "id": id,
        "type": "function_call_output",
        "call_id": result.call_id,
        "output": output,
        "status": "completed",
    }


def server_call(
    id: str, use: ToolUse, result: ToolResult | None = None, *, status: str | None = None, approval: str | None = None
) -> Item:
    """Return a call of a tool of the service, as OpenAI shows those of a remote server."""
    failed = result is not None and result.is_error
    state = status or ("failed" if failed else "completed" if result else "in_progress")
    item: Item = {"id": id, "type": "mcp_call", "server_label": SERVER, "name": use.name, "status": state}
    item |= {"arguments": arguments_of(use), "approval_request_id": approval}
    text = "\n".join([result.text, *map(described_part, result.blocks)]) if result else None
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
    return {**item, "output": None if failed else text, "error": error if failed else None}


def approval_request(id: str, use: ToolUse) -> Item:
    """Return the request to approve a call of a tool of the service."""
    return {
        "id": id,
        "type": "mcp_approval_request",
        "server_label": SERVER,
        "name": use.name,
        "arguments": arguments_of(use),
    }


def pack(thoughts: Sequence[Thinking]) -> str:
    """Return thoughts with what their provider signed, as a text that a client can send back."""
    held = [[thought.text, thought.signature, thought.redacted] for thought in thoughts]
    return base64.b64encode(json.dumps(held, separators=(",", ":")).encode()).decode()


def unpack(encrypted: str) -> list[Thinking]:
    """Return the thoughts that `pack` packed.

    Raises:
        ValueError: the text is something else.
    """
    try:
        held = json.loads(base64.b64decode(encrypted, validate=True))
        return [Thinking(text=text, signature=signature, redacted=redacted) for text, signature, redacted in held]
    except (TypeError, ValueError) as error:
        raise ValueError("it is no reasoning of this service: send the item unchanged, or leave it out") from error


def answers_of(output: Iterable[AnyBlock]) -> Iterator[tuple[list[AnyBlock], dict[str, ToolResult]]]:
    """Yield the model's answers in a run's output, each with the results of its calls."""
    answer: list[AnyBlock] = []
    results: dict[str, ToolResult] = {}
    for block in output:
        if isinstance(block, ToolResult):
            results[block.call_id] = block
            continue
        if results:
            yield answer, results
            answer, results = [], {}
        answer.append(block)
    if answer:
        yield answer, results


@dataclass(frozen=True)
class Placed:
    """An item, and the blocks that it shows."""

    item: Item
    numbers: tuple[int, ...]
    """The numbers of the item's blocks among those that its turn added."""
    part: int = 0
    """The part of the run that the item is in."""
    is_removed: bool = False


def output_items(
    run_id: str, output: Sequence[AnyBlock], calls: Mapping[str, Any], *, encrypted: bool = False
) -> list[tuple[int, Item]]:
    """Return the items of a run's output, with what clients have provided, each with its part of the run.

    Args:
        calls: the states of the run's calls, as in its record.
    """
    return [(placed.part, placed.item) for placed in placed_output(run_id, output, calls, encrypted=encrypted)]


def placed_output(
    run_id: str,
    output: Sequence[AnyBlock],
    calls: Mapping[str, Any],
    *,
    removed: Container[int] = (),
    first: int = 0,
    where: Spans = (),
    encrypted: bool = False,
) -> Iterator[Placed]:
    """Yield the items of a run's output with their blocks, also removed ones.

    Args:
        removed: the numbers of the removed blocks.
        first: the number of the first block.
        where: the positions of the output, to yield also the prompts that joined the run.
    """
    states, part, unlisted_numbers = decode_calls(calls), 0, list[int]()
    positions = dict(enumerate(places(where), first))
    numbers = {id(block): number for number, block in enumerate(output, first)}
    for answer, (answer_blocks, results) in enumerate(answers_of(output)):
        for number in (numbers[id(block)] for block in answer_blocks if isinstance(block, User)):
            if position := positions.get(number):
                prompt = placed_prompt((position,), [output[number - first]])[0]
                yield replace(prompt, numbers=(number,), part=part, is_removed=number in removed)
        for kind in (Thinking, Text):
            every = [block for block in answer_blocks if isinstance(block, kind)]
            remaining = [block for block in every if numbers[id(block)] not in removed]
            for item in said_items(run_id, answer, remaining or every, encrypted=encrypted):
                shown = [numbers[id(block)] for block in every]
                if kind is Text:  # calls that are not listed go with the text, such as attempts at a typed answer
                    shown, unlisted_numbers = [*unlisted_numbers, *shown], []
                yield Placed(item, tuple(shown), part, not remaining)
        uses, next_part = uses_of(answer_blocks), part
        shown_uses = {use.call_id for use in uses}
        unlisted = [use for use in answer_blocks if isinstance(use, ToolUse) and use.call_id not in shown_uses]
        unlisted_numbers += (numbers[id(use)] for use in unlisted)
        for use_number, use in enumerate(uses):
            state, result = states.get(use.call_id), results.get(use.call_id)
            next_part = part + 1 if is_boundary(state) else next_part
            for is_after, item in _call_items((run_id, answer, use_number), use, state, result):
                block = result if result and item["type"] == "function_call_output" else use
                is_removed = numbers[id(use)] in removed or numbers[id(block)] in removed
                yield Placed(item, (numbers[id(block)],), part + is_after, is_removed)
        part = next_part


def said_items(run_id: str, answer: int, blocks: Sequence[Block], *, encrypted: bool) -> list[Item]:
    """Return what the model thought and said in one answer, as items."""
    items: list[Item] = []
    if thoughts := [block for block in blocks if isinstance(block, Thinking)]:
        items.append(reasoning(output_item_id("rs", run_id, answer), thoughts, encrypted=encrypted))
    if texts := [block for block in blocks if isinstance(block, Text)]:
        cut = any(block.interrupted for block in texts)
        text = "".join(block.text for block in texts)
        items.append(message(output_item_id("msg", run_id, answer), text, "incomplete" if cut else "completed"))
    return items


def uses_of(blocks: Iterable[Block]) -> list[ToolUse]:
    """Return the calls of an answer, without the one by which a model gives a typed answer."""
    return [block for block in blocks if isinstance(block, ToolUse) and block.name != ANSWER_TOOL]


def is_boundary(state: CallState | None) -> bool:
    """Return whether a call ends the response: its client provides the result, or approves it."""
    return state is not None and state.wants in ("result", "approval")


def _call_items(
    use_id: tuple[str, int, int], use: ToolUse, state: CallState | None, result: ToolResult | None
) -> Iterator[tuple[bool, Item]]:
    """Yield the items of a call, each with whether it is in the part of the run after the one with the call.

    Args:
        use_id: the run's id, the number of the answer in the run, and the number of the call in the answer.
    """
    if state is not None and state.wants == "result":
        yield False, function_call(output_item_id("fc", *use_id), use)
        if result:
            yield True, function_call_output(output_item_id("fco", *use_id), result)
        return
    request = None
    if state is not None and state.wants == "approval":
        request = output_item_id("mcpr", *use_id)
        yield False, approval_request(request, use)
        if state.verdict:
            item = {"id": output_item_id("mcpa", *use_id), "type": "mcp_approval_response", "reason": None}
            yield True, {**item, "approval_request_id": request, "approve": state.verdict == "approved"}
    if request is None or result:
        yield request is not None, server_call(output_item_id("mcp", *use_id), use, result, approval=request)


def prompt_items(prompt: Spans, blocks: Sequence[AnyBlock]) -> list[Item]:
    """Return prompts as items. A picture or a file belongs to the message before it, if that is the user's."""
    return [placed.item for placed in placed_prompt(prompt, blocks)]


def placed_prompt(prompt: Spans, blocks: Sequence[AnyBlock], removed: Container[int] = ()) -> list[Placed]:
    """Return prompts as items with their blocks, also removed ones; see `prompt_items` and `placed_output`."""
    items: list[Placed] = []
    for number, (position, block) in enumerate(zip(places(prompt), blocks, strict=True)):
        item = _prompt_item(block, lambda prefix: prompt_item_id(prefix, position.log, position.start))  # noqa: B023 - called at once
        last = items[-1] if items else None
        is_removed = number in removed
        is_attachment = isinstance(block, Image | Document) and last is not None and last.is_removed == is_removed
        if item and last and is_attachment and last.item.get("role") == "user":
            last.item["content"] += item["content"]
            items[-1] = replace(last, numbers=(*last.numbers, number))
        elif item:
            items.append(Placed(item, (number,), is_removed=is_removed))
    return items


def _prompt_item(block: AnyBlock, id_of: Any) -> Item | None:  # noqa: PLR0911 - a table
    match block:
        case User() | Summary() | Image() | Document():
            return _input_item(id_of, "user", _content_part(block))
        case System():
            return _input_item(id_of, "system", _content_part(block))
        case Text(text=text):
            return message(id_of("msg"), text, "incomplete" if block.interrupted else "completed")
        case Thinking():
            return reasoning(id_of("rs"), [block], encrypted=bool(block.signature or block.redacted))
        case ToolUse():
            return function_call(id_of("fc"), block)
        case ToolResult():
            return function_call_output(id_of("fco"), block)
        case _:
            return None


def _input_item(id_of: Any, role: str, content_part: Item) -> Item:
    return {"id": id_of("msg"), "type": "message", "role": role, "status": "completed", "content": [content_part]}


def _content_part(block: User | Summary | System | Text | Image | Document) -> Item:
    """Return a block as a content part of a message, or of an output."""
    if isinstance(block, Image):
        url = block.url or (data_uri(block) if block.data else None)
        return {"type": "input_image", "detail": "auto", "image_url": url, "file_id": block.file}
    if not isinstance(block, Document):
        return {"type": "input_text", "text": block.text}
    if block.plain:
        return {"type": "input_text", "text": f"{block.name}:\n{block.plain}"}
    if block.file:
        return {"type": "input_file", "filename": block.name, "file_id": block.file}
    source = {"file_data": data_uri(block)} if block.data else {"file_url": block.url}
    return {"type": "input_file", "filename": block.name, **source}


def described_part(block: Text | Image | Document) -> str:
    """Return the text that stands for a content part where only texts are shown."""
    return block.text if isinstance(block, Text) else f"[{described(block)}]"
