"""Blocks: the immutable pieces that a conversation is made of.

A block is one prompt, one stretch of answer, one tool call, one tool result. Its `kind` tells which; on the wire and
on disk it is a JSON object of that kind. A kind this version does not know is kept as `Unknown` and written back as
it came, so an older reader loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import pydantic_core
from pydantic import BaseModel, ConfigDict, model_validator

from turnwise.memory.frozen import FrozenDict, JsonObject, freeze

Role = Literal["system", "user", "assistant", "tool"]


class Block(BaseModel):
    """Base of all kinds. Frozen, nested payloads included; equal by value; fields it does not know are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: ClassVar[Role] = "user"
    """Who speaks: the role of the provider's message that carries this block."""

    kind: str


class System(Block):
    """Instructions to the model. The last one set wins."""

    role: ClassVar[Role] = "system"
    kind: Literal["system"] = "system"
    text: str


class User(Block):
    """A prompt."""

    kind: Literal["user"] = "user"
    text: str


class Text(Block):
    """A stretch of the model's answer. `interrupted`: the run ended before the model had finished it."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["text"] = "text"
    text: str
    interrupted: bool = False


class Thinking(Block):
    """The model's reasoning. `signature` is opaque and goes back unchanged; `redacted` holds what the provider hid."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["thinking"] = "thinking"
    text: str = ""
    signature: str | None = None
    redacted: str | None = None


class ToolUse(Block):
    """The model asks for a tool call. `call_id` pairs it with its `ToolResult`."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["tool_use"] = "tool_use"
    call_id: str
    name: str
    input: JsonObject = FrozenDict()
    signature: str | None = None


class ToolResult(Block):
    """What a tool call gave, or, with `is_error`, why it gave nothing."""

    role: ClassVar[Role] = "tool"
    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    text: str
    is_error: bool = False


class _Payload(Block):
    """What both pictures and files need to say of what they hold."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None

    @model_validator(mode="after")
    def _is_sendable(self) -> Self:
        """Refuse what no provider takes: it would make every later request invalid."""
        if not (self.url or self.data or getattr(self, "text", None)):
            raise ValueError(f"a {self.kind} needs a url, or data with its media_type")
        if self.data and not self.media_type:
            raise ValueError(f"a {self.kind} with data needs its media_type, such as image/png")
        return self


class Image(_Payload):
    """A picture, by `url` or as base64 `data` of a `media_type` such as image/png."""

    kind: Literal["image"] = "image"


class Document(_Payload):
    """A file, by `url`, as base64 `data` of a `media_type`, or as plain `text`."""

    kind: Literal["document"] = "document"
    name: str
    text: str | None = None


class Citations(Block):
    """The sources that the answer before it rests on, as the provider gave them."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["citations"] = "citations"
    items: tuple[JsonObject, ...]


class Summary(Block):
    """A summary of what other blocks held: where the window is too small for them, it stands in their place.

    `of` has the spans of block logs (log, start, stop) that it stands for, in reading order, and `folded` the places
    (log, position) of the summaries among them. They are all still there: `session.expand(summary)` returns them.
    """

    kind: Literal["summary"] = "summary"
    text: str
    of: tuple[tuple[str, int, int], ...] = ()
    folded: tuple[tuple[str, int], ...] = ()


class Recalled(Block):
    """What long-term memory has about a prompt, as sections of text. Stands in requests, never in a history."""

    kind: Literal["recalled"] = "recalled"
    text: str


class CacheCheckpoint(Block):
    """The provider may cache the request up to here."""

    kind: Literal["cache_checkpoint"] = "cache_checkpoint"


class Unknown(Block):
    """A block of a kind that this version does not know. Kept and written back; never sent to a provider."""

    kind: str
    payload: JsonObject = FrozenDict()

    @model_validator(mode="after")
    def _is_unknown(self) -> Self:
        if self.kind in KINDS or "kind" in self.payload:
            raise ValueError("it would be read as a block of another kind: use that kind's class")
        return self


KINDS: dict[str, type[Block]] = {
    cls.model_fields["kind"].default: cls
    for cls in (
        *(System, User, Text, Thinking, ToolUse, ToolResult),
        *(Image, Document, Citations, Summary, Recalled, CacheCheckpoint),
    )
}


def encode(block: Block) -> str:
    """Return the block as a JSON object on one line, without the fields that have their default value."""
    if isinstance(block, Unknown):
        return pydantic_core.to_json({"kind": block.kind, **block.payload}).decode()
    body = block.model_dump_json(exclude_defaults=True, exclude={"kind"})
    return f'{{"kind":"{block.kind}"' + (f",{body[1:]}" if body != "{}" else "}")


def decode(encoded: str) -> Block:
    """Return the block that `encode` wrote. A kind not known here becomes `Unknown`.

    Raises:
        ValueError: not a JSON object with a `kind`, or its fields do not fit the kind.
    """
    data: Any = pydantic_core.from_json(encoded)
    if not isinstance(data, dict) or not isinstance(kind := data.pop("kind", None), str):
        raise ValueError("a block is a JSON object with a kind")
    if cls := KINDS.get(kind):
        return cls.model_validate(data)
    return Unknown(kind=kind, payload=freeze(data))


def answer_text(blocks: Sequence[Block]) -> str:
    """Return the text of the blocks that follow the last tool result, joined."""
    parts: list[str] = []
    for block in reversed(blocks):
        if isinstance(block, ToolResult):
            break
        if isinstance(block, Text):
            parts.append(block.text)
    return "".join(reversed(parts))


__all__ = [
    "KINDS",
    "Block",
    "CacheCheckpoint",
    "Citations",
    "Document",
    "Image",
    "Summary",
    "System",
    "Text",
    "Thinking",
    "ToolResult",
    "ToolUse",
    "Unknown",
    "User",
    "answer_text",
    "decode",
    "encode",
]
