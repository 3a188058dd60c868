"""The Chat Completions API: builds its requests and reads its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.actors.inference.openai.fields import (
    arguments_of,
    broken_off,
    definition,
    is_object,
    items,
    names,
    part,
    string,
    texts,
    tool_use,
    usage_of,
)
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.structured_output import Form, choose_tool
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolUse
from turnwise.memory.conversation.transcript import messages_of
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.endpoints import lessons_of, pack_attached
from turnwise.memory.providers.openai_chat import ATTACHED, encode
from turnwise.memory.providers.validation import CHAT, check

if TYPE_CHECKING:
    import openai

    from turnwise.actors.inference.openai.engine import OpenAIEngine

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Names that servers give the field for the maximum length of an answer."""

_OTHER_LIMIT = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}


class ChatAPI:
    """Makes requests for completions. The profile says how the server differs from OpenAI's."""

    rules = CHAT
    key_setting = "api_key= or OPENAI_API_KEY"

    def __init__(self, settings: RequestSettings[OpenAIEngine]) -> None:
        self.settings = settings

    def of_run(self, settings: RequestSettings[OpenAIEngine]) -> ChatAPI:
        return ChatAPI(settings)

    @property
    def fields(self) -> dict[str, Any]:
        settings, engine = self.settings, self.settings.engine
        own: dict[str, Any] = {}
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
        check(messages_of(blocks), self.rules)
        return {"messages": encode(blocks, self.settings.profile), **self.fields, **self._formed(form)}

    def _formed(self, form: Form | None) -> dict[str, Any]:
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

    def adapt(self, refused: str, form: Form | None) -> bool:
        known = self.settings.refused
        own = [name for name in ("stream_options", self._limit_field) if name in self.fields]
        own += ["tool_choice"] if form and choose_tool(self.fields, form) else []
        for field in own:
            if field not in (self.settings.engine.extra or ()) and names(refused, field):
                is_new = field not in known
                known.add(field)
                return is_new
        new = (lessons_of(refused) or set(form.refused_as(refused) if form else ())) - known
        known.update(new)
        return bool(new)

    def blamed(self, error: openai.APIStatusError) -> tuple[str | None, str | None]:
        return error.code, error.param

    def without_thoughts(self, request: Mapping[str, Any], refused: str) -> Mapping[str, Any] | None:
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
        self.refusal = ""
        self._provider = provider
        self._answer_tool = answer_tool
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._details: list[dict[str, Any]] = []
        """Details of thoughts from OpenRouter, with their chunks joined."""
        self._signed: list[dict[str, Any]] = []
        """Thoughts that Claude signed, as LiteLLM attaches them, with their chunks joined."""
        self._calls: list[_Call] = []
        self._call_at: dict[int | None, _Call] = {}

    @property
    def is_cut(self) -> bool:
        return self.stop_reason == "length"

    def add(self, event: Mapping[str, Any]) -> list[str | Block]:
        # Groq sends usage in a field of its own.
        if counted := event.get("usage") or part(event, "x_groq").get("usage"):
            self.usage = usage_of(counted, "prompt", "completion")
        parts: list[str | Block] = []
        for choice in items(event, "choices"):
            if not isinstance(choice, Mapping):
                raise ValueError(f"a choice is not an object but {type(choice).__name__}")
            if choice.get("index") in (None, 0):
                parts += self._add_choice(choice)
        return parts

    def blocks(self) -> list[AnyBlock]:
        blocks: list[AnyBlock] = []
        attached = {name: found for name, found in zip(ATTACHED, (self._details, self._signed), strict=True) if found}
        signature = pack_attached(self._provider, **attached) if attached else None
        if self._thoughts or signature:
            blocks.append(Thinking(text="".join(self._thoughts), signature=signature))
        if self._texts:
            blocks.append(Text(text="".join(self._texts)))
        return [*blocks, *(self._use(at, call) for at, call in enumerate(self._calls))]

    def _use(self, at: int, call: _Call) -> ToolUse:
        attached = pack_attached(self._provider, extra_content=call.extra_content) if call.extra_content else None
        return tool_use(at, call.call_id, call.name, call.arguments, is_cut=self.is_cut, signature=attached)

    def _add_choice(self, choice: Mapping[str, Any]) -> list[str | Block]:
        if choice.get("error") or choice.get("finish_reason") == "error":
            raise broken_off(choice.get("error") or "without a reason")
        self.stop_reason = string(choice, "finish_reason") or self.stop_reason
        delta = part(choice, "delta")
        # Servers that do not stream send the whole message, and some repeat it at the end of a stream.
        if not (self._texts or self._calls or any(delta.get(name) for name in _CONTENT_FIELDS)):
            delta = part(choice, "message") or delta
        parts: list[str | Block] = []
        if thought := self._thought(delta):
            self._thoughts.append(thought)
            parts.append(Thinking(text=thought))
        refusal = string(delta, "refusal")
        self.refusal += refusal
        if text := texts(delta.get("content"), "content") or refusal:
            self._texts.append(text)
            parts.append(text)
        for piece in items(delta, "tool_calls"):
            call, arguments = self._add_call(piece)
            if arguments and call.name == self._answer_tool:
                parts.append(arguments)
        return parts

    def _thought(self, delta: Mapping[str, Any]) -> str:
        for detail in items(delta, "reasoning_details"):
            self._add_detail(detail)
        for block in items(delta, "thinking_blocks"):
            self._add_signed(block)
        if thought := string(delta, "reasoning_content") or string(delta, "reasoning"):
            return thought
        content = delta.get("content")  # Mistral sends thoughts as parts of the content
        thinking = [each for each in content if string(each, "type") == "thinking"] if isinstance(content, list) else []
        return "".join(texts(each.get("thinking"), "thinking") for each in thinking)

    def _add_signed(self, block: Any) -> None:
        kind, text, signature = string(block, "type"), string(block, "thinking"), string(block, "signature")
        last = self._signed[-1] if self._signed else {}
        if kind == last.get("type") == "thinking" and not last.get("signature"):
            last["thinking"] += text
            last.update({"signature": signature} if signature else {})
        elif kind == "thinking":
            self._signed.append({"type": kind, "thinking": text, **({"signature": signature} if signature else {})})
        elif kind:
            self._signed.append(dict(block))

    def _add_detail(self, detail: Any) -> None:
        if not isinstance(detail, Mapping):
            raise ValueError(f"a reasoning detail is not an object but {type(detail).__name__}")
        last = self._details[-1] if self._details else {}
        if detail.get("index") is None or any(detail.get(name) != last.get(name) for name in ("index", "type")):
            self._details.append(dict(detail))
            return
        for name, value in detail.items():
            grows = name in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(name), str)
            if grows:
                last[name] += value
            elif value is not None:
                last[name] = value

    def _add_call(self, piece: Any) -> tuple[_Call, str]:
        """Add a piece of a call. Return the call that it belongs to, and its piece of the arguments."""
        if not isinstance(piece, Mapping):
            raise ValueError(f"a call is not an object but {type(piece).__name__}")
        index, call_id, function = piece.get("index"), string(piece, "id"), part(piece, "function")
        name, arguments = string(function, "name"), arguments_of(function)
        call = self._call_at.get(index)
        if call is None or call.is_another(call_id, name):
            call = self._call_at[index] = _Call()
            self._calls.append(call)
        call.call_id = call.call_id or call_id
        call.name = call.name or name
        call.arguments += arguments
        call.extra_content = piece.get("extra_content") or call.extra_content
        return call, arguments


_CONTENT_FIELDS = ("content", "refusal", "tool_calls", "reasoning_content", "reasoning")
"""Fields of a delta that contain a piece of the answer."""


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    extra_content: Any = None

    def is_another(self, call_id: str, name: str) -> bool:
        """Return whether a piece with this id and name begins another call.

        Needed because some servers give every call the index 0, or none. Some repeat the name in each piece, so
        without ids a piece begins another call only if the arguments of this one are complete.
        """
        if call_id and self.call_id:
            return call_id != self.call_id
        return bool(name and self.name) and (name != self.name or is_object(self.arguments))
