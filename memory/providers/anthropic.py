"""Converts blocks to messages of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from turnwise.memory.conversation.blocks import (
    Block,
    CacheCheckpoint,
    Document,
    Image,
    Recalled,
    Summary,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
)
from turnwise.memory.conversation.transcript import system_of
from turnwise.memory.providers.arrangement import ready
from turnwise.memory.providers.openai_chat import ERROR, INTERRUPTED, SUMMARY
from turnwise.memory.providers.validation import ANTHROPIC, Rules

LOST = "bG9zdA=="
"""The data of the redacted thought that replaces thoughts whose signatures were lost."""

MAX_MARKS = 4
"""The most parts of a request that may have a `cache_control`."""

Part = dict[str, Any]

CacheTime = Literal["5m", "1h"]


def encode(
    blocks: Sequence[Block],
    rules: Rules = ANTHROPIC,
    *,
    cache: CacheTime | None = None,
    marks: int = MAX_MARKS,
    checks: bool = False,
) -> tuple[str | list[Part] | None, list[Part]]:
    """Return the system prompt and the messages for the blocks.

    - The last `System` is the system prompt. The messages of user and assistant alternate.
    - A message of the assistant has its thoughts first, then texts and calls. A message of the user has the tool
      results first, in the order in which the calls were declared.
    - Thoughts with Anthropic's signature, and redacted thoughts, are sent unchanged. Other thoughts are left out. If a
      message that calls tools loses all of its thoughts, one redacted thought with the data `LOST` replaces them.
    - A tool result with images or documents has them in its content, after its text. Failed ones have a text that says
      so instead of the mark, as the API takes only text with the mark.
    - A document with chunks is sent as content of several texts, one with `cite` with citations enabled.
    - The part before each of the last cache checkpoints gets a `cache_control`, of at most `marks` of them.
    - Thoughts without a following text or call, citations, unknown kinds and blank texts are not sent.

    The messages are valid if the blocks are: see `repair` and `validation.check`.

    Args:
        rules: `ANTHROPIC`, or `BEDROCK` where Amazon hosts the model.
        cache: how long the provider keeps what is marked; None for its own default, five minutes. If it is set, the
            system prompt, what stands before recalled text, and the end of the conversation are marked too.
        marks: how many marks the rest of the request leaves, from 0.
        checks: see `ready`.

    Raises:
        InvalidRequestError: see `ready`.
        UnsupportedBlockError: the API accepts an image or document in none of its forms.
    """
    if cache:
        # What was recalled for the prompt is in no later request, so what stands before it has a mark of its own.
        recalled = [index for index, block in enumerate(blocks) if index and isinstance(block, Recalled)][-1:]
        end = recalled[0] if recalled else len(blocks)
        before_recalled = [*blocks[:end], CacheCheckpoint()] if recalled else blocks[:end]
        blocks = [CacheCheckpoint(), *before_recalled, *blocks[end:], CacheCheckpoint()]
    text = system_of(blocks) or ""
    system: Part | None = {"type": "text", "text": text} if text.strip() else None
    last, cached = system, list[Part]()
    messages: list[Part] = []
    for message in ready((block for block in blocks if _is_sent(block, rules)), rules, checks=checks):
        content: list[Part] = []
        for block in message.blocks:
            if not isinstance(block, CacheCheckpoint | Thinking):
                last = _part(block, rules)
                content.append(last)
            elif isinstance(block, CacheCheckpoint) and last is not None:
                cached = [*(part for part in cached if part is not last), last]
        if content:
            messages.append({"role": message.role, "content": [*_thoughts(message.blocks), *content]})
    for part in cached[max(0, len(cached) - marks) :]:
        part["cache_control"] = {"type": "ephemeral", **({"ttl": cache} if cache else {})}
    if system is None:
        return None, messages
    return [system] if "cache_control" in system else text, messages


def _is_sent(block: Block, rules: Rules) -> bool:
    return rules.sends(block) or isinstance(block, CacheCheckpoint)


def _thoughts(blocks: Sequence[Block]) -> list[Part]:
    thoughts = [block for block in blocks if isinstance(block, Thinking) and block != Thinking()]
    encoded = [_thought(block) for block in thoughts if is_kept(block)]
    if thoughts and not encoded and any(isinstance(block, ToolUse) for block in blocks):
        return [{"type": "redacted_thinking", "data": LOST}]
    return encoded


def is_kept(thought: Thinking) -> bool:
    """Return whether a thought is sent unchanged: it has Anthropic's signature, or is redacted."""
    # Anthropic's signatures are base64. A JSON signature is another provider's: see `openai_responses.pack_reasoning`.
    return bool(thought.redacted or (thought.signature and not thought.signature.startswith("{")))


def _thought(thought: Thinking) -> Part:
    if thought.redacted:
        return {"type": "redacted_thinking", "data": thought.redacted}
    return {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _part(block: Block, rules: Rules) -> Part:
    match block:
        case User() | Summary() | Recalled():
            return {"type": "text", "text": SUMMARY * isinstance(block, Summary) + block.text}
        case Text():
            return {"type": "text", "text": block.text + INTERRUPTED * block.interrupted}
        case ToolUse():
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": dict(block.input)}
        case ToolResult():
            return _result(block, rules)
        case Image():
            return {"type": "image", "source": _source(block, rules)}
        case Document():
            about = {"title": block.name} if block.name else {}
            cited = {"citations": {"enabled": True}} if block.cite else {}
            return {"type": "document", "source": _source(block, rules), **about, **cited}
        case _:
            raise TypeError(f"{block.kind} is never sent")


def _result(result: ToolResult, rules: Rules) -> Part:
    part: Part = {"type": "tool_result", "tool_use_id": result.call_id}
    is_marked = result.is_error and not result.attachments
    if is_marked:
        part["is_error"] = True
    text = result.text if is_marked or not result.is_error else ERROR + result.text
    # The API refuses an error without text, and blank text.
    content = text if text.strip() else ERROR.strip() * result.is_error
    more = [_part(block, rules) for block in filter(rules.sends, result.blocks)]
    if more:
        part["content"] = [*([{"type": "text", "text": content}] if content else []), *more]
    elif content:
        part["content"] = content
    return part


def _source(block: Image | Document, rules: Rules) -> Part:
    match rules.form(block):
        case "text" if isinstance(block, Document) and block.chunks:
            return {"type": "content", "content": [{"type": "text", "text": chunk} for chunk in block.chunks]}
        case "text":
            return {"type": "text", "media_type": "text/plain", "data": getattr(block, "text", None)}
        case "data":
            return {"type": "base64", "media_type": block.media_type, "data": block.data}
        case _:
            return {"type": "url", "url": block.url}
