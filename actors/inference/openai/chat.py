"""The Chat Completions API: builds its requests and reads its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai.fields import (
    arguments_of,
    broken_off,
    definition,
    grown,
    items,
    mentions,
    part,
    piece,
    string,
    texts,
    tool_use,
    usage_of,
)
from turnwise.actors.inference.openai.request import CACHE_KEY, RequestSettings
from turnwise.actors.inference.openai.structured_output import Form, choose_tool
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolUse
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.endpoints import lessons_of, pack_attached
from turnwise.memory.providers.openai_chat import THOUGHT_FIELDS, encode
from turnwise.memory.providers.validation import CHAT
from turnwise.memory.values.growing_text import GrowingText, whole_json

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai.engine import OpenAIEngine

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Names that servers give the field for the maximum length of an answer."""

_OTHER_LIMIT = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}


class ChatAPI:
    """Implements `API` of runner.py, which documents the methods, by requests for completions.

    The profile says how the server differs from OpenAI's.
    """

    rules = CHAT
    key_setting = "api_key= or OPENAI_API_KEY"

    def __init__(self, settings: RequestSettings[OpenAIEngine]) -> None:
        self.settings = settings

    def of_run(self, settings: RequestSettings[OpenAIEngine]) -> ChatAPI:
        return ChatAPI(settings)

    @property
    def fields(self) -> dict[str, Any]:
        settings, engine = self.settings, self.settings.engine
        own: dict[str, Any] = settings.cache_key
        if engine.stream and settings.profile.stream_options and "stream_options" not in settings.refused:
            own["stream_options"] = {"include_usage": True}
        if engine.store is not None:
            own["store"] = engine.store
        fields = settings.fields(own, self._limit_field, map(self._declared, settings.tools))
        for name, value in settings.params.items():
            if name == "max_output_tokens":
                names_in_extra = [limit for limit in LIMITS if limit in (engine.extra or ())]
                for limit in LIMITS:
                    fields.pop(limit, None)
                fields[(*names_in_extra, self._limit_field)[0]] = value
            else:
                fields[settings.profile.seed_field if name == "seed" else name] = value
        return settings.of_step(fields)

    @property
    def _limit_field(self) -> str:
        field = self.settings.profile.limit_field
        return _OTHER_LIMIT[field] if field in self.settings.refused else field

    def request(self, blocks: Sequence[Block], form: Form | None) -> dict[str, Any]:
        messages = encode(blocks, self.settings.profile, checks=True)
        return {"messages": messages, **self.fields, **self._answer_fields(form)}

    def _answer_fields(self, form: Form | None) -> dict[str, Any]:
        """Return the fields that request an answer in this form."""
        if form and form.tool:
            fields = self.fields
            tools = [*fields.get("tools", ()), self._declared(form.definition)]
            return {"tools": tools, **choose_tool(fields, form)}
        if form and form.json_schema:
            return {"response_format": {"type": "json_schema", "json_schema": form.json_schema}}
        return {"response_format": {"type": "json_object"}} if form and form.way == "json_object" else {}

    def _declared(self, tool: ToolDefinition) -> dict[str, Any]:
        return {"type": "function", "function": definition(tool, self.settings.profile.unknown_keywords)}

    def adapt(self, message: str, form: Form | None) -> bool:
        refused_fields = self.settings.refused
        own = [name for name in ("stream_options", CACHE_KEY, self._limit_field) if name in self.fields]
        own += ["tool_choice"] if form and choose_tool(self.fields, form) else []
        for field in own:
            is_callers = field in (self.settings.engine.extra or ()) or field in self.settings.params
            if not is_callers and mentions(message, field):
                is_new = field not in refused_fields
                refused_fields.add(field)
                return is_new
        new = (lessons_of(message) or set(form.refused_as(message) if form else ())) - refused_fields
        refused_fields.update(new)
        return bool(new)

    def blamed(self, error: openai.APIStatusError) -> tuple[str | None, str | None]:
        return error.code, error.param

    def without_thoughts(self, request: Mapping[str, Any], message: str) -> Mapping[str, Any] | None:
        return None

    async def open(self, client: openai.AsyncOpenAI, request: Mapping[str, Any]) -> openai.AsyncStream[Any]:
        # `extra_body` is sent as it is; the client would take up to half a millisecond to inspect each message.
        return await client.chat.completions.create(
            model=self.settings.model, messages=[], stream=True, extra_body=request
        )

    def answer(self, form: Form | None) -> ChatAnswer:
        return ChatAnswer(self.settings.profile.name, form.tool if form else None)


class ChatAnswer:
    """A completion, assembled from its chunks: at most one `Thinking`, at most one `Text`, then the tool calls.

    Args:
        provider: the name under which signatures store what the provider attached to calls and thoughts.
        answer_tool: the tool whose arguments are the answer; they are emitted as text.
    """

    def __init__(self, provider: str = "openai", answer_tool: str | None = None) -> None:
        self.usage = Usage(calls=1)
        self.stop_reason: str | None = None
        self._provider = provider
        self._answer_tool = answer_tool
        self._counts: dict[str, Any] = {}
        self._refusal = GrowingText()
        self._thoughts = GrowingText()
        self._text = GrowingText()
        self._details = _Joined(("text", "summary", "data"))
        """Details of thoughts from OpenRouter."""
        self._signed = _Joined(("thinking",))
        """Thoughts that Claude signed, as LiteLLM attaches them."""
        self._calls: list[_Call] = []
        self._call_at: dict[int | None, _Call] = {}

    @property
    def refusal(self) -> str:
        """See `Answer`."""
        return str(self._refusal)

    @property
    def is_cut(self) -> bool:
        return self.stop_reason == "length"

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        # Groq sends usage in a field of its own.
        if counted := event.get("usage") or part(event, "x_groq").get("usage"):
            self._counts = grown(self._counts, counted)
            self.usage = usage_of(self._counts, "prompt", "completion")
        parts: list[str | Block] = []
        for choice in items(event, "choices"):
            if not isinstance(choice, Mapping):
                raise ValueError(f"a choice is not an object but {type(choice).__name__}")
            if choice.get("index") in (None, 0):
                parts += self._add_choice(choice)
        return parts

    def end(self) -> list[str | Block]:
        thought, text = self._thoughts.end(), self._text.end()
        rest = [(call.name, call.arguments.end()) for call in self._calls]
        output = [text, *(arguments for name, arguments in rest if name == self._answer_tool)]
        return [*([Thinking(text=thought)] if thought else []), *filter(None, output)]

    def blocks(self) -> list[AnyBlock]:
        self.end()
        blocks: list[AnyBlock] = []
        lists = self._details.items(), self._signed.items()
        attached = {name: entries for name, entries in zip(THOUGHT_FIELDS, lists, strict=True) if entries}
        signature = pack_attached(self._provider, **attached) if attached else None
        if self._thoughts or signature:
            blocks.append(Thinking(text=str(self._thoughts), signature=signature))
        if self._text:
            blocks.append(Text(text=str(self._text)))
        return [*blocks, *(self._use(index, call) for index, call in enumerate(self._calls))]

    def _use(self, index: int, call: _Call) -> ToolUse:
        extra = whole_json(call.extra_content)
        attached = pack_attached(self._provider, extra_content=extra) if extra else None
        return tool_use(index, call.call_id, call.name, str(call.arguments), is_cut=self.is_cut, signature=attached)

    def _add_choice(self, choice: Mapping[str, Any]) -> list[str | Block]:
        if choice.get("error") or choice.get("finish_reason") == "error":
            raise broken_off(choice.get("error") or "without a reason")
        self.stop_reason = string(choice, "finish_reason") or self.stop_reason
        delta = self._delta(choice)
        parts: list[str | Block] = []
        if thought := self._thoughts.add(self._thought(delta)):
            parts.append(Thinking(text=thought))
        refusal = piece(delta, "refusal")
        self._refusal.add(refusal)
        if text := self._text.add(texts(delta.get("content"), "content") or refusal):
            parts.append(text)
        for call_piece in items(delta, "tool_calls"):
            call, arguments = self._add_call(call_piece)
            if arguments and call.name == self._answer_tool:
                parts.append(arguments)
        return parts

    def _delta(self, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a choice's delta; of a whole message, which some servers send at the end of a stream, what is missing.

        Servers that do not stream send the message only.
        """
        delta = part(choice, "delta")
        message = {} if any(delta.get(name) for name in _CONTENT_FIELDS) else part(choice, "message")
        if not message:
            return delta
        has = {
            **dict.fromkeys(_SPOKEN, self._text),
            **dict.fromkeys(_THOUGHT, self._thoughts),
            "tool_calls": self._calls,
        }
        return {name: value for name, value in message.items() if not has.get(name)}

    def _thought(self, delta: Mapping[str, Any]) -> str:
        for detail in items(delta, "reasoning_details"):
            self._add_detail(detail)
        for block in items(delta, "thinking_blocks"):
            self._add_signed(block)
        if thought := piece(delta, "reasoning_content") or piece(delta, "reasoning"):
            return thought
        content = delta.get("content")  # Mistral sends thoughts as parts of the content
        thinking = [part for part in content if string(part, "type") == "thinking"] if isinstance(content, list) else []
        return "".join(texts(part.get("thinking"), "thinking") for part in thinking)

    def _add_signed(self, block: Any) -> None:
        kind, signature = string(block, "type"), string(block, "signature")
        last = self._signed.last
        signed = {"signature": signature} if signature else {}
        if kind == "thinking":
            continues = last.get("type") == kind and not last.get("signature")
            self._signed.add({"type": kind, "thinking": piece(block, "thinking"), **signed}, continues=continues)
        elif kind:
            self._signed.add(dict(block), continues=False)

    def _add_detail(self, detail: Any) -> None:
        if not isinstance(detail, Mapping):
            raise ValueError(f"a reasoning detail is not an object but {type(detail).__name__}")
        is_same = all(detail.get(name) == self._details.last.get(name) for name in ("index", "type"))
        self._details.add(detail, continues=is_same and detail.get("index") is not None)

    def _add_call(self, call_piece: Any) -> tuple[_Call, str]:
        """Add a piece of a call. Return the call that it belongs to, and its piece of the arguments."""
        if not isinstance(call_piece, Mapping):
            raise ValueError(f"a call is not an object but {type(call_piece).__name__}")
        index, call_id, function = call_piece.get("index"), string(call_piece, "id"), part(call_piece, "function")
        name, arguments = string(function, "name"), arguments_of(function)
        call = self._call_at.get(index)
        if call is None or call.is_another(call_id, name):
            call = self._call_at[index] = _Call()
            self._calls.append(call)
        call.call_id = call.call_id or call_id
        call.name = call.name or name
        call.extra_content = call_piece.get("extra_content") or call.extra_content
        return call, call.add(arguments)


_SPOKEN, _THOUGHT = ("content", "refusal"), ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")

_CONTENT_FIELDS = (*_SPOKEN, "tool_calls", "reasoning_content", "reasoning")
"""Fields of a delta that contain a piece of the answer."""


class _Joined:
    """A list of objects that come in pieces.

    Args:
        growing: the names of fields with texts that come in pieces; of other fields the last value counts.
    """

    def __init__(self, growing: Sequence[str]) -> None:
        self._growing = growing
        self._items: list[dict[str, Any]] = []

    @property
    def last(self) -> Mapping[str, Any]:
        return self._items[-1] if self._items else {}

    def add(self, item: Mapping[str, Any], *, continues: bool) -> None:
        """Add an object, or a piece of the last one."""
        if not continues or not self._items:
            self._items.append({})
        last = self._items[-1]
        for name, value in item.items():
            if name in self._growing and isinstance(value, str):
                if not isinstance(last.get(name), GrowingText):
                    last[name] = GrowingText()
                last[name].add(value)
            elif value is not None or name not in last:
                last[name] = value

    def items(self) -> list[dict[str, Any]]:
        return [{name: _ended(value) for name, value in item.items()} for item in self._items]


def _ended(value: Any) -> Any:
    if not isinstance(value, GrowingText):
        return whole_json(value)
    value.end()
    return str(value)


_MARK = re.compile(r'["\\{}\[\]]')


class _Call:
    """A tool call that comes in pieces. To add one is O(its length)."""

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.extra_content: Any = None
        self.arguments = GrowingText()
        self._depth = 0
        """How many objects and lists of the arguments are open."""
        self._has_begun = self._is_in_text = self._is_escaped = False

    def add(self, arguments: str) -> str:
        """Add a piece of the arguments; return what of it is whole characters."""
        end = 0
        for mark in _MARK.finditer(arguments):
            start, kind = mark.start(), mark[0]
            is_escaped, self._is_escaped = self._is_escaped and start == end, False
            end = start + 1
            if is_escaped:
                continue
            if self._is_in_text:
                self._is_in_text = kind != '"'
                self._is_escaped = kind == "\\"
            elif kind == '"':
                self._is_in_text = True
            elif kind != "\\":
                self._depth, self._has_begun = self._depth + (1 if kind in "{[" else -1), True
        self._is_escaped = self._is_escaped and end == len(arguments)
        return self.arguments.add(arguments)

    def is_another(self, call_id: str, name: str) -> bool:
        """Return whether a piece with this id and name begins another call.

        Needed because some servers give every call the index 0, or none. Some repeat the name in each piece, so
        without ids a piece begins another call only if all that the arguments of this one opened is closed.
        """
        if call_id and self.call_id:
            return call_id != self.call_id
        is_closed = self._has_begun and self._depth <= 0 and not self._is_in_text
        return bool(name and self.name) and (name != self.name or is_closed)
