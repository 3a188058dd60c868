"""An engine for the OpenAI API and whatever speaks it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pydantic_core

from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.errors import ConfigError, EngineError
from turnwise.memory.blocks import Block, System, Text, Thinking, ToolUse
from turnwise.memory.chat import encode
from turnwise.memory.frozen import freeze
from turnwise.memory.turns import Turn
from turnwise.memory.usage import Usage
from turnwise.memory.validate import check_chat

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionChunk

_RESERVED = {"model", "messages", "stream", "stream_options"}

_NO_KEY = "no-api-key"
"""What a server that asks for no key is sent as one."""

_CONNECT_S = 5.0
"""How long a connection may take; the rest of `timeout_s` is for the answer."""

_REMEDIES = {
    400: "the provider refuses the request: see its message",
    401: "check api_key= or OPENAI_API_KEY",
    403: "this key may not use this model: use another key or model=",
    404: "check model= and base_url=",
    413: "the request is too large: shorten the conversation",
    422: "the provider refuses the request: see its message",
    429: "wait, use fewer sessions at once, or raise max_retries=",
}

_REMEDIES_BY_CODE = {
    "context_length_exceeded": "the conversation is longer than the model's window: pass an overflow strategy",
    "insufficient_quota": "check the account's plan and billing",
}


@dataclass(frozen=True, slots=True)
class OpenAIEngine:
    """Answers with a model behind the Chat Completions API, streamed.

    Holds settings only, so it pickles, its key included: leave `api_key` out and set OPENAI_API_KEY where the sessions
    run to keep it from travelling. Imports and connects nothing before `build`.
    """

    model: str
    """The provider's name for the model."""
    _: KW_ONLY
    system: str | None = None
    """Instructions that take the place of the conversation's own system prompt in every request; never stored."""
    base_url: str | None = None
    """Where the API is; OPENAI_BASE_URL, else OpenAI's own, if left out."""
    api_key: str | None = field(default=None, repr=False)
    """OPENAI_API_KEY if left out; may be missing if there is a base URL."""
    timeout_s: float = 60.0
    """The longest silence of the provider, before its answer and within it. `run(timeout_s=...)` bounds the whole."""
    max_retries: int = 2
    """How often the client repeats a request that was refused for now (408, 409, 429, 5xx) or met a dead line."""
    temperature: float | None = None
    """0 or more; the model's own if left out."""
    max_output_tokens: int | None = None
    """Sent as `max_completion_tokens`. For a server that knows only the older name: `extra={"max_tokens": ...}`."""
    extra: Mapping[str, Any] | None = None
    """More fields of the request body, as JSON values."""

    def __post_init__(self) -> None:
        _check("model", self.model, bool(self.model.strip()), "name a model")
        _check_url("base_url", self.base_url)
        _check("api_key", "***", self.api_key is None or _is_key(self.api_key), "must be ASCII text without spaces")
        _check("timeout_s", self.timeout_s, 0 < self.timeout_s < math.inf, "must be more than 0 seconds")
        _check("max_retries", self.max_retries, self.max_retries >= 0, "must be 0 or more")
        _check("temperature", self.temperature, 0 <= (self.temperature or 0) < math.inf, "must be 0 or more")
        tokens = self.max_output_tokens
        _check("max_output_tokens", tokens, tokens is None or tokens >= 1, "must be 1 or more")
        _check("extra", self.extra, self.extra is None or isinstance(self.extra, Mapping), "must be a mapping")
        taken = sorted(_RESERVED.intersection(self.extra or ()))
        _check("extra", taken, not taken, "the engine sets these fields itself")
        try:
            object.__setattr__(self, "extra", freeze(self.extra))
        except TypeError as error:
            raise ConfigError("extra", self.extra, str(error)) from error

    def build(self, session: SessionView) -> OpenAIRunner:
        """Return a runner with a client of its own.

        Raises:
            EngineError: there is no key to use, or the environment's OPENAI_BASE_URL or OPENAI_API_KEY is unusable.
        """
        import openai

        base_url = self.base_url or os.environ.get("OPENAI_BASE_URL") or None
        api_key = self.api_key or os.environ.get("OPENAI_API_KEY") or None
        if api_key is None and base_url is None:
            raise EngineError("there is no API key: set OPENAI_API_KEY where the session runs, or pass api_key=")
        if api_key is not None and not _is_key(api_key):
            raise EngineError("OPENAI_API_KEY must be ASCII text without spaces")
        try:
            _check_url("OPENAI_BASE_URL", base_url)
        except ConfigError as error:
            raise EngineError(str(error)) from error
        client = openai.AsyncOpenAI(
            api_key=api_key or _NO_KEY,
            base_url=base_url,
            timeout=openai.Timeout(self.timeout_s, connect=min(self.timeout_s, _CONNECT_S)),
            max_retries=self.max_retries,
        )
        return OpenAIRunner(self, client)


class OpenAIRunner:
    """Answers the turns of one session over one client, which keeps its connection between turns."""

    def __init__(self, settings: OpenAIEngine, client: openai.AsyncOpenAI) -> None:
        self._settings = settings
        self._client = client

    async def run(self, turn: Turn, context: RunContext) -> Sequence[Block]:
        """Return at most one `Thinking`, at most one `Text`, then the calls that the model makes, as `ToolUse`.

        Text and thoughts are emitted as they come; usage and stop reason are reported at the end. Cancelled, it closes
        the connection at once.

        Raises:
            EngineError: the conversation cannot be sent; the provider refused it, broke off, or sent nothing or what
                cannot be read. What came before that was emitted.
        """
        import openai

        messages = self._messages(turn)
        answer = _Answer()
        try:
            async with await self._open(messages) as stream:
                async for chunk in stream:
                    for part in answer.add(chunk):
                        context.emit(part)
        except openai.APITimeoutError as error:
            why = f"fell silent for timeout_s={self._settings.timeout_s} within its answer: run the prompt again"
            raise self._error(why) from error
        except openai.APIConnectionError as error:
            why = f"cut the connection within its answer ({error.__cause__}): run the prompt again"
            raise self._error(why) from error
        except openai.APIError as error:
            raise self._error(f"broke its answer off: {self._redacted(error.message)}") from self._safe(error)
        except ValueError as error:
            raise self._error(f"sent a malformed stream ({error}): check base_url=") from error
        finally:
            context.report(usage=answer.usage, stop_reason=answer.stop_reason)
        if answer.stop_reason is None:
            raise self._error("ended its answer without a finish_reason, so it is cut short: run the prompt again")
        try:
            blocks = answer.blocks()
        except ValueError as error:
            raise self._error(f"made a tool call that cannot be read: {error}; {answer.remedy}") from error
        if not any(isinstance(block, Text | ToolUse) for block in blocks):
            raise self._error(f"returned nothing (finish_reason={answer.stop_reason!r}): {answer.remedy}")
        return blocks

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _messages(self, turn: Turn) -> list[dict[str, Any]]:
        blocks = turn.blocks
        if self._settings.system is not None:
            blocks = (*blocks, System(text=self._settings.system))
        messages = encode(blocks)
        check_chat(messages)
        return messages

    async def _open(self, messages: Any) -> openai.AsyncStream[ChatCompletionChunk]:
        import openai

        settings = self._settings
        try:
            return await self._client.chat.completions.create(
                model=settings.model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                temperature=openai.omit if settings.temperature is None else settings.temperature,
                max_completion_tokens=settings.max_output_tokens or openai.omit,
                extra_body=settings.extra,
            )
        except openai.APITimeoutError as error:
            why = f"sent nothing within timeout_s={settings.timeout_s}, {self._tries}: raise it, or check base_url="
            raise self._error(why) from error
        except openai.APIConnectionError as error:
            why = f"cannot be reached ({error.__cause__}), {self._tries}: check base_url= and the network"
            raise self._error(why) from error
        except openai.APIStatusError as error:
            remedy = _REMEDIES_BY_CODE.get(error.code or "") or _REMEDIES.get(error.status_code)
            remedy = remedy or f"the same {self._tries}: run the prompt again later"
            raise self._error(f"refused the request: {self._redacted(_said(error))}; {remedy}") from self._safe(error)

    @property
    def _tries(self) -> str:
        return f"after {self._settings.max_retries} retries"

    def _error(self, why: str) -> EngineError:
        where = self._client.base_url.host
        return EngineError(f"model {self._settings.model!r} at {where} {why}")

    def _redacted(self, text: str) -> str:
        return text.replace(self._client.api_key, "***")

    def _safe(self, error: Exception) -> Exception | None:
        """Return the error, unless it quotes the key, which some servers do: a log that prints causes would show it."""
        return error if self._redacted(str(error)) == str(error) else None


def _said(error: openai.APIStatusError) -> str:
    """Return status and message; servers that are merely compatible may have the message elsewhere."""
    has_message = isinstance(error.body, Mapping) and error.body.get("message")
    return error.message if has_message or not error.body else f"{error.message} - {str(error.body)[:200]}"


class _Answer:
    """Puts an answer together from its stream."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[_Call] = []
        self._call_at: dict[int | None, _Call] = {}

    def add(self, chunk: Any) -> list[str | Block]:
        """Take one chunk in; return what of it is to be emitted.

        Raises:
            ValueError: a field is not what it has to be. The client does not check.
        """
        if usage := getattr(chunk, "usage", None):
            self.usage = _usage(usage)
        parts: list[str | Block] = []
        for choice in _items(chunk, "choices")[:1]:
            self.stop_reason = _string(choice, "finish_reason") or self.stop_reason
            delta = getattr(choice, "delta", None)
            if thought := _string(delta, "reasoning_content") or _string(delta, "reasoning"):
                self._thoughts.append(thought)
                parts.append(Thinking(text=thought))
            if text := _string(delta, "content") or _string(delta, "refusal"):
                self._texts.append(text)
                parts.append(text)
            for call in _items(delta, "tool_calls"):
                self._add_call(call)
        return parts

    def blocks(self) -> list[Block]:
        """Return the answer so far: thoughts, text, calls.

        Raises:
            ValueError: a call has no id or name, or its arguments are not a JSON object.
        """
        blocks: list[Block] = []
        if self._thoughts:
            blocks.append(Thinking(text="".join(self._thoughts)))
        if self._texts:
            blocks.append(Text(text="".join(self._texts)))
        return blocks + [call.block() for call in self._calls]

    @property
    def remedy(self) -> str:
        return "raise max_output_tokens=" if self.stop_reason == "length" else "run the prompt again, or check model="

    def _add_call(self, delta: Any) -> None:
        index, call_id = getattr(delta, "index", None), _string(delta, "id")
        call = self._call_at.get(index)
        # Some servers number every call 0, or none.
        if call is None or (call_id and call.call_id and call_id != call.call_id):
            call = self._call_at[index] = _Call()
            self._calls.append(call)
        function = getattr(delta, "function", None)
        call.call_id = call.call_id or call_id
        call.name = call.name or _string(function, "name")
        call.arguments += _string(function, "arguments")


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def block(self) -> ToolUse:
        if not self.call_id or not self.name:
            raise ValueError(f"call {self.call_id!r} of {self.name!r} lacks its id or its name")
        try:
            # A tool without parameters is often called with no text at all.
            arguments = pydantic_core.from_json(self.arguments or "{}", allow_inf_nan=False)
        except ValueError as error:
            raise ValueError(f"the arguments of {self.name!r} are not JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {self.name!r} are not a JSON object")
        return ToolUse(call_id=self.call_id, name=self.name, input=arguments)


def _usage(counted: Any) -> Usage:
    prompt, completion = (getattr(counted, f"{side}_tokens_details", None) for side in ("prompt", "completion"))
    return Usage(
        input_tokens=_count(counted, "prompt_tokens"),
        output_tokens=_count(counted, "completion_tokens"),
        cached_tokens=_count(prompt, "cached_tokens"),
        reasoning_tokens=_count(completion, "reasoning_tokens"),
    )


def _string(holder: Any, name: str) -> str:
    value = getattr(holder, name, None) or ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a string but {type(value).__name__}")
    # Half of a surrogate pair is valid JSON, but no text that can be stored or sent back.
    return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _items(holder: Any, name: str) -> list[Any]:
    value = getattr(holder, name, None) or []
    if not isinstance(value, list):
        raise ValueError(f"{name} is not a list but {type(value).__name__}")
    return value


def _count(holder: Any, name: str) -> int:
    value = getattr(holder, name, None) or 0
    if not isinstance(value, int):
        raise ValueError(f"{name} is not a number but {type(value).__name__}")
    return value


def _check(setting: str, value: object, ok: bool, why: str) -> None:
    if not ok:
        raise ConfigError(setting, value, why)


def _check_url(setting: str, url: str | None) -> None:
    _check(setting, url, url is None or _is_url(url), "must be an http(s) URL, such as http://127.0.0.1:8000/v1")


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, or an IPv6 address that is none
        return False


def _is_key(key: str) -> bool:
    return key.isascii() and key.isprintable() and bool(key) and " " not in key
