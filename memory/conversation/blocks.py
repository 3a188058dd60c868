"""Blocks: the immutable pieces that a conversation is made of.

A block is one prompt, one piece of an answer, one tool call, or one tool result. `kind` says which; on the wire and
on disk a block is a JSON object with that kind. A kind that this version does not know is read as `Unknown` and written
back unchanged, so an older reader loses nothing.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again for each class.
"""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, get_args
from urllib.parse import urlsplit

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from turnwise.memory.values.frozen_json import MAX_DEPTH, FrozenDict, JsonObject, freeze, is_deeper
from turnwise.memory.values.ids import is_file_id
from turnwise.memory.values.plain_text import decoded_text
from turnwise.memory.values.records import lean, reduced

Role = Literal["system", "user", "assistant", "tool"]

Str = Annotated[str, Strict()]
"""Text. Bytes are refused, since pydantic would decode them."""


class Block(BaseModel):
    """Base class of all blocks. Frozen, nested payloads too; equal by value; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # built at first use

    role: ClassVar[Role] = "user"
    """The role of the provider's message that carries this block."""

    kind: str

    __reduce_ex__ = reduced


class System(Block):
    """Instructions to the model. The last one set wins."""

    role: ClassVar[Role] = "system"
    kind: Literal["system"] = "system"
    text: Str


def _is_none(value: object) -> bool:
    return value is None


class User(Block):
    """A prompt."""

    kind: Literal["user"] = "user"
    text: Str
    author: Str | None = Field(default=None, exclude_if=_is_none)
    """Who has said it, where several people share the session. The session sets it, so that nobody speaks for others.
    None for the session's user."""


class Text(Block):
    """A piece of the model's answer. `interrupted`: the run ended before the model had finished this text."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["text"] = "text"
    text: Str
    interrupted: bool = False


class Thinking(Block):
    """The model's reasoning. `signature` is opaque and goes back unchanged; `redacted` is the encrypted reasoning."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["thinking"] = "thinking"
    text: Str = ""
    signature: Str | None = None
    redacted: Str | None = None


class ToolUse(Block):
    """The model asks for a tool call. `call_id` pairs it with its `ToolResult`."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["tool_use"] = "tool_use"
    call_id: Str
    name: Str
    input: JsonObject = Field(default_factory=FrozenDict)
    signature: Str | None = None
    flaw: Str | None = None
    """Why the arguments that the model wrote are no JSON object. Then no tool gets the call, nobody is asked about it,
    and `input` has what the model wrote as its only value, named `unparsed`."""


class _Payload(Block):
    """The fields and checks that `Image` and `Document` share."""

    url: Str | None = None
    data: Str | None = None
    media_type: Str | None = None
    file: Str | None = None
    """The id of a file of the session, or of its user: see `session.files`. A request to a model has its bytes."""
    size: int | None = None
    """How many bytes the file has. It is set when the block is stored."""

    @field_validator("data", mode="before")
    @classmethod
    def _is_text(cls, data: Any) -> Any:
        if isinstance(data, bytes | bytearray | memoryview):
            raise ValueError("data is base64 text: pass base64.b64encode(data).decode()")
        return data

    @model_validator(mode="after")
    def _is_sendable(self) -> Self:
        """Refuse a block that no provider accepts: it would make every later request invalid."""
        others = self.url or self.data or getattr(self, "plain", None)
        if self.file and others:
            raise ValueError(f"a {self.kind} with a file has no url, data or text beside it")
        if not (self.file or others):
            raise ValueError(f"a {self.kind} needs a url, a file, or data with its media_type")
        if self.data and not self.media_type:
            raise ValueError(f"a {self.kind} with data needs its media_type, such as image/png")
        return self

    @cached_property
    def flaw(self) -> str | None:
        """Why no provider accepts the block (invalid base64, media type or url); None if nothing is wrong.

        The first read is O(size of the data). Prompts and tool results are refused if they have one.
        """
        if self.file is not None and not is_file_id(self.file):
            return f"{self.file[:99]!r} is no id of a file, such as session.files.put returns"
        if self.media_type and (flaw := self._flaw_of_type(self.media_type)):
            return flaw
        if self.data and not _is_base64(self.data):
            return "its data is not base64"
        if self.url and (match := _DATA_URL.fullmatch(self.url)):
            flaw = self._flaw_of_type(match[1])
            return flaw or (None if _is_base64(match[2]) else "its data is not base64")
        return f"its url is not valid: {self.url[:99]!r}" if self.url and not _is_url(self.url) else None

    def _flaw_of_type(self, media_type: str) -> str | None:
        return None if _MEDIA_TYPE.fullmatch(media_type) else f"{media_type[:99]!r} is no media type"


_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*"
_MEDIA_TYPE = re.compile(rf"{_NAME}/{_NAME}(; ?{_NAME}=[^;,\s]+)*")
_DATA_URL = re.compile(r"data:([^,]*);base64,(.*)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\x00-\x20\x7f-\xa0]+")


def is_media_type(text: object) -> bool:
    """Return whether a text is a media type, such as image/png."""
    return isinstance(text, str) and len(text) <= _TYPE_CHARS and bool(_MEDIA_TYPE.fullmatch(text))


_TYPE_CHARS = 255


def _is_base64(text: str) -> bool:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return True


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https")
        return bool(_URL.fullmatch(text) and (parts.hostname if is_web else parts.netloc or parts.path))
    except ValueError:  # brackets without an IP address in them
        return False


class Image(_Payload):
    """A picture, by `url`, as base64 `data` of a `media_type` such as image/png, or as a `file` of the session."""

    kind: Literal["image"] = "image"

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str) -> Self:
        """Return the picture of a file's bytes."""
        return cls(data=base64.b64encode(data).decode(), media_type=media_type)

    def _flaw_of_type(self, media_type: str) -> str | None:
        flaw = super()._flaw_of_type(media_type)
        if flaw is None and not media_type.lower().startswith("image/"):
            return f"an image is of a media type such as image/png, not {media_type[:99]!r}"
        return flaw


class Document(_Payload):
    """A file, by `url`, as base64 `data` of a `media_type`, as plain `text`, as `chunks` of text, or as a `file`.

    `Document.from_bytes` takes a file's bytes. A `file` is one of the session, whose name the document has by default.
    """

    kind: Literal["document"] = "document"
    name: Str = ""
    text: Str | None = None
    chunks: tuple[Str, ...] = ()
    """Pieces of text that the model can cite one by one, where the provider has citations; else they are one text."""
    cite: bool = False
    """Whether the model is asked to cite the document, where the provider has citations; see `Citations`."""

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if self.text and self.chunks:
            raise ValueError("a document has either text or chunks")
        if not all(chunk.strip() for chunk in self.chunks):
            raise ValueError("a chunk of a document must not be blank")
        return self

    @property
    def plain(self) -> str | None:
        """The text, or the chunks with a blank line between them; None if it has neither."""
        return "\n\n".join(self.chunks) if self.chunks else self.text

    @classmethod
    def from_bytes(cls, name: str, data: bytes, media_type: str, *, cite: bool = False) -> Self:
        """Return the document of a file: as text if its type is text/..., else as data.

        Texts are read as `decoded_text` does.

        Raises:
            ValueError: nothing can be made of the values.
        """
        if media_type.startswith("text/"):
            return cls(name=name, text=decoded_text(data), cite=cite)
        return cls(name=name, data=base64.b64encode(data).decode(), media_type=media_type, cite=cite)


Content = Annotated[Text | Image | Document, Field(discriminator="kind")]
"""What a tool's result may have beside its text."""


class ToolResult(Block):
    """The result of a tool call or, with `is_error`, why the call failed. The model gets the text, then the blocks."""

    role: ClassVar[Role] = "tool"
    kind: Literal["tool_result"] = "tool_result"
    call_id: Str
    text: Str
    is_error: bool = False
    is_json: bool = False
    """Whether `text` is the JSON of a payload, such as that of an object which the tool returned."""
    blocks: tuple[Content, ...] = ()
    """Images, documents and further texts, in order. See `turnwise.memory.providers` for what each API gets."""

    @classmethod
    def of(cls, value: Any, *blocks: Text | Image | Document, is_error: bool = False) -> Self:
        """Return a result for a tool to return, or to provide: a text or a JSON payload, with blocks beside it.

        The call's id is set when the result is recorded.

        Raises:
            ValueError: JSON cannot hold the value.
        """
        is_json = not isinstance(value, str)
        text = pydantic_core.to_json(value, inf_nan_mode="strings").decode() if is_json else value
        return cls(call_id="", text=text, is_error=is_error, is_json=is_json, blocks=blocks)

    @property
    def data(self) -> Any:
        """The payload, frozen, if the result is JSON; None for other results. Parsed at each read."""
        if not self.is_json:
            return None
        try:
            return freeze(pydantic_core.from_json(self.text))
        except (TypeError, ValueError):  # the text was changed, such as by a redaction
            return None

    @property
    def plain(self) -> str:
        """The text with that of its blocks, each on a line of its own; other blocks are described in brackets."""
        return "\n".join(filter(None, (self.text, *map(_plain, self.blocks)))) if self.blocks else self.text

    @property
    def attachments(self) -> tuple[Image | Document, ...]:
        """The images and documents among the blocks."""
        return tuple(block for block in self.blocks if not isinstance(block, Text))

    def replacing(self, reason_for: Callable[[Image | Document], str | None]) -> Self:
        """Return the result with a text in place of each image and document for which `reason_for` returns a reason."""
        blocks = tuple(_left_out(block, reason_for) for block in self.blocks)
        return self if blocks == self.blocks else self.model_copy(update={"blocks": blocks})


class Citations(Block):
    """The sources that the provider names for the answer before this block, in the provider's format."""

    role: ClassVar[Role] = "assistant"
    kind: Literal["citations"] = "citations"
    items: tuple[JsonObject, ...]


class Summary(Block):
    """A summary that replaces other blocks in requests when the window is too small for them.

    `of` has the spans of block logs (log, start, stop) that it replaces, in reading order, and `folded` the positions
    (log, position) of the summaries among them. All these blocks stay stored: `session.expand(summary)` returns them.
    """

    kind: Literal["summary"] = "summary"
    text: Str
    of: tuple[tuple[str, int, int], ...] = ()
    folded: tuple[tuple[str, int], ...] = ()


class Recalled(Block):
    """Text from long-term memory that bears on a prompt. It is part of requests, never of a history."""

    kind: Literal["recalled"] = "recalled"
    text: Str


class CacheCheckpoint(Block):
    """The provider may cache the request up to here."""

    kind: Literal["cache_checkpoint"] = "cache_checkpoint"


class Unknown(Block):
    """A block of a kind that this version does not know. Kept and written back unchanged; never sent to a provider."""

    kind: Literal["unknown"] = "unknown"
    stored_kind: str
    """Its kind on the wire and on disk."""
    payload: JsonObject = Field(default_factory=FrozenDict)
    """Its other fields on the wire and on disk."""

    @model_validator(mode="after")
    def _is_unknown(self) -> Self:
        if self.stored_kind in KINDS or "kind" in self.payload:
            raise ValueError("it would be read as a block of another kind: use that kind's class")
        return self


AnyBlock = Annotated[
    System
    | User
    | Text
    | Thinking
    | ToolUse
    | ToolResult
    | Image
    | Document
    | Citations
    | Summary
    | Recalled
    | CacheCheckpoint
    | Unknown,
    Field(discriminator="kind"),
]
"""All classes of blocks. A type checker narrows it by `block.kind` or by the class.

It is a type for pydantic and FastAPI: JSON that they write of a block is read as an equal block. Objects of other kinds
are refused; `decode` reads them as `Unknown`.
"""

KINDS: dict[str, type[Block]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(get_args(AnyBlock)[0]) if cls is not Unknown
}

_JSON_FIELDS: dict[str, str | None] = {**dict.fromkeys(KINDS), "tool_use": "input", "citations": "items"}
"""The field that has JSON, by the kind of block: most kinds have none."""


def named_files(block: Block) -> list[Image | Document]:
    """Return the attachments that name files: the block itself, or those of a tool's result."""
    parts = block.blocks if isinstance(block, ToolResult) else (block,)
    return [part for part in parts if isinstance(part, Image | Document) and part.file is not None]


def is_too_deep(block: Block) -> bool:
    """Return whether the block's JSON is nested deeper than `MAX_DEPTH`. JSON parsers accept about 200 levels."""
    field = _JSON_FIELDS.get(block.kind, "payload")
    value = field and getattr(block, field, None)
    return bool(value) and is_deeper(value, MAX_DEPTH)


def encode(block: Block) -> str:
    """Return the block as a JSON object on one line, without the fields that have their default value.

    Raises:
        ValueError: the block holds lone surrogates, or is nested too deeply.
    """
    if is_too_deep(block):
        raise ValueError(f"its JSON is nested more than {MAX_DEPTH} levels deep")
    if isinstance(block, Unknown):
        return pydantic_core.to_json({"kind": block.stored_kind, **block.payload}).decode()
    if isinstance(block, ToolResult) and block.blocks:
        body = block.model_dump_json(exclude_defaults=True, exclude={"kind", "blocks"})
        return f'{{"kind":"{block.kind}",{body[1:-1]},"blocks":[{",".join(map(encode, block.blocks))}]}}'
    body = block.model_dump_json(exclude_defaults=True, exclude={"kind"})
    return f'{{"kind":"{block.kind}"' + (f",{body[1:]}" if body != "{}" else "}")


def decode(encoded: str) -> AnyBlock:
    """Return the block that `encode` wrote. A kind not known here becomes `Unknown`.

    Raises:
        ValueError: not a JSON object with a `kind`, or its fields do not fit the kind.
    """
    try:
        return decode_json(pydantic_core.from_json(encoded))
    except TypeError as error:  # lone surrogates, or numbers such as NaN
        raise ValueError(str(error)) from error


def decode_json(data: Any) -> AnyBlock:
    """Return the block of a JSON value; see `decode`. Changes the value."""
    try:
        if not isinstance(data, dict) or not isinstance(kind := data.pop("kind", None), str):
            raise ValueError("a block is a JSON object with a kind")
        if cls := KINDS.get(kind):
            block: AnyBlock = cls.__pydantic_validator__.validate_python(data)
            return lean(block)
        return Unknown(stored_kind=kind, payload=freeze(data))
    except TypeError as error:  # lone surrogates, or numbers such as NaN
        raise ValueError(str(error)) from error


def described(block: Image | Document) -> str:
    """Return the text that stands for a picture or a file where it is not shown: kind, name, media type."""
    name = f" {block.name[:99]}" if isinstance(block, Document) and block.name else ""
    return f"{block.kind}{name}{f' ({block.media_type[:99]})' if block.media_type else ''}"


def left_out(block: Image | Document, reason: str) -> str:
    """Return the text that a model gets in place of a picture or a file."""
    return f"[{described(block)} is left out: {reason}]"


def _left_out(
    block: Text | Image | Document, reason_for: Callable[[Image | Document], str | None]
) -> Text | Image | Document:
    reason = None if isinstance(block, Text) else reason_for(block)
    return block if reason is None or isinstance(block, Text) else Text(text=left_out(block, reason))


def _plain(block: Text | Image | Document) -> str:
    if isinstance(block, Text):
        return block.text
    return f"{block.name}:\n{block.plain}" if isinstance(block, Document) and block.plain else f"[{described(block)}]"


CLEARED = Unknown.model_construct(stored_kind="cleared")
"""What remains of a block that was cleared. It keeps its place in the log."""


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
    "AnyBlock",
    "Block",
    "CacheCheckpoint",
    "Citations",
    "Content",
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
    "decode_json",
    "described",
    "encode",
    "left_out",
]
