"""`AnthropicEngine`: settings of an engine for Anthropic's Messages API."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from turnwise.actors.inference.engine import RequestFrame, SessionView
from turnwise.actors.inference.middleware import Middleware, wrap
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.openai.settings import (
    check,
    check_settings,
    check_url,
    http_client,
    is_key,
    joined_prompt,
    keeps_attachments,
    replacing_prompt,
)
from turnwise.actors.inference.redaction import LONG
from turnwise.actors.inference.tools.loop import Hook, ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import Tool, ToolDefinition
from turnwise.adapters.anthropic.messages import LIMIT, MessagesAPI, not_taken
from turnwise.adapters.version_checks import expect, framework
from turnwise.errors import ConfigError, EngineError, InvalidInputError, shown
from turnwise.memory.conversation.blocks import Document, Image
from turnwise.memory.conversation.model_params import forces_call
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.providers.anthropic import CacheTime
from turnwise.memory.providers.endpoints import Profile
from turnwise.memory.providers.validation import ANTHROPIC
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.required_arguments import needs

with framework("anthropic", extra="anthropic", tested="2.12"):
    import anthropic
    from anthropic import APIConnectionError, APIStatusError, APITimeoutError, AsyncAnthropic, Timeout
    from anthropic.resources.messages import AsyncMessages

    expect(AsyncAnthropic, "api_key", "base_url", "default_headers", "default_query", "timeout", "max_retries")
    expect(AsyncAnthropic, "http_client", "auth_token", "credentials")
    expect(AsyncMessages.create, "model", "max_tokens", "messages", "stream", "extra_body")

if TYPE_CHECKING:
    import httpx2

_NAMES = (APIConnectionError, APIStatusError, APITimeoutError)
"""What `OpenAIRunner` looks up in the client's package."""

_RESERVED = {"model", "messages", "system", "stream", "max_tokens", "thinking"}

_LEAST_THINKING = 1024

_REFUSED: dict[tuple[str, str], set[str]] = {}
"""What a server has refused in this process, by base URL and model; it is not sent again."""

_KEY_VARIABLE = "ANTHROPIC_API_KEY"

_NO_KEY = "no-api-key"
"""The key that is sent to a server that needs none."""


@needs(model="name a model, such as AnthropicEngine('claude-sonnet-4-5')")
@dataclass(frozen=True)
class AnthropicEngine:
    """Streams answers from a Claude model behind Anthropic's Messages API.

    It is used as `OpenAIEngine` is: with tools, approvals, typed answers, parameters of runs, middleware and hooks.
    Thoughts are kept with their signatures, also redacted ones, and sent back unchanged. The engine holds settings only
    and is pickled to the sessions' processes, without a key: each reads `api_key_variable` from its own environment.
    """

    model: str
    """Anthropic's name for the model."""
    _: KW_ONLY
    system: str | None = None
    """A system prompt before the conversation's own (its last `System` block) in every request; never stored.
    `SystemPrompt` in `middleware` replaces that of the conversation instead.

    Questions of turnwise's own, such as for a title, a summary or facts, keep theirs. They also get no tools, and
    nothing else that gives the engine's answers a form: neither `output_type` nor such fields of `extra`."""
    thinking: int | Literal["adaptive"] | None = None
    """How the model thinks before it answers: with at most this many tokens, from 1024, or as much as it finds right.
    If omitted, the model's own default applies."""
    cache: CacheTime | None = "5m"
    """How long Anthropic keeps the request for the next one: the tools and the system prompt, and the conversation, are
    marked with `cache_control`. Anthropic takes four marks: those in `extra`, then the last ones, also of
    `CacheCheckpoint` blocks. `Usage.cached_tokens` says what was read from the cache. If None, only `CacheCheckpoint`
    blocks are marks. To a gateway that refuses marks, none are sent from then on."""
    base_url: str | None = None
    """The API's URL, without /v1; if omitted, ANTHROPIC_BASE_URL of the session's process, else Anthropic's own."""
    api_key_variable: str = _KEY_VARIABLE
    """The environment variable with the key, read where the session runs. With a base URL, none is needed. Without
    ANTHROPIC_API_KEY, the client looks for its other credentials, such as ANTHROPIC_AUTH_TOKEN."""
    default_headers: Mapping[str, str] | None = field(default=None, repr=False)
    """More headers for each request, such as `anthropic-beta`. They are pickled to the sessions' processes."""
    default_query: Mapping[str, str] | None = None
    """More query parameters for each request."""
    http_client: Callable[[], httpx2.AsyncClient] | None = None
    """Makes the HTTP client of a session, for example with a proxy or custom certificates; must be picklable."""
    stream: bool = True
    """Whether answers are streamed. Set it to False for a gateway that cannot; then the text arrives in one piece."""
    connect_timeout_s: float = 5.0
    """The time limit for connecting, in seconds."""
    first_byte_s: float | None = None
    """The time limit until an answer begins, with all retries, in seconds; `timeout_s` if omitted."""
    timeout_s: float = 60.0
    """The longest pause within an answer, in seconds. `run(timeout_s=...)` limits the whole run."""
    max_retries: int = 2
    """How often the client repeats a request after a temporary refusal (408, 409, 429, 5xx) or a connection error."""
    temperature: float | None = None
    """0 to 1; the model's default if omitted. Anthropic refuses it beside `thinking`."""
    max_output_tokens: int | None = None
    """The limit of an answer, in tokens, thoughts included; 8192 beside the tokens of `thinking` if omitted."""
    tools: ToolRegistry | Sequence[Tool] = ()
    """The tools that the model may call; a plain sequence becomes a `ToolRegistry` with its defaults."""
    middleware: Sequence[Middleware] = ()
    """Wraps each call of the model; the first is outermost."""
    hooks: Sequence[Hook] = ()
    """Called with the turn before and after each model call, and after tools. A failing hook does not fail the run."""
    output_type: Mapping[str, Any] | None = None
    """The type of answers for runs without `output=`; set by `answering`."""
    extra: Mapping[str, Any] | None = None
    """More fields of the request body, as JSON values; `tools` among them come after the engine's own."""

    def __post_init__(self) -> None:
        thinks = self.thinking is None or self.thinking == "adaptive"
        is_budget = isinstance(self.thinking, int) and self.thinking >= _LEAST_THINKING
        check("thinking", self.thinking, thinks or is_budget, "must be 'adaptive', or at least 1024 tokens")
        check("cache", self.cache, self.cache in (None, "5m", "1h"), "must be '5m' or '1h'")
        check("api_key_variable", self.api_key_variable, bool(self.api_key_variable.strip()), "must not be blank")
        check_settings(self, _RESERVED)
        wrong = None if self.temperature is None else self._why_not("temperature", self.temperature)
        check("temperature", self.temperature, not wrong, wrong or "")
        budget = self.thinking if isinstance(self.thinking, int) else 0
        is_within = self.max_output_tokens is None or self.max_output_tokens > budget
        check("max_output_tokens", self.max_output_tokens, is_within, "must be more than the tokens of thinking=")

    @property
    def registry(self) -> ToolRegistry:
        """The engine's tools, with the rules for calling them."""
        return self.tools if isinstance(self.tools, ToolRegistry) else ToolRegistry(*self.tools)

    @property
    def begins_within_s(self) -> float:
        """The time limit until an answer begins, in seconds."""
        return self.timeout_s if self.first_byte_s is None else self.first_byte_s

    def answering(self, output: Any, *, retries: int = 2) -> AnthropicEngine:
        """Return an engine of the same model that calls no tools and answers in JSON of this type.

        Args:
            output: a pydantic model, or another type for which pydantic makes the schema of an object; see
                `Session.run`. Or a JSON schema: then the caller has to check the answers.
            retries: how often an answer that does not match is returned to the model.

        Raises:
            InvalidInputError: `output` has no schema of an object.
        """
        schema_type = OutputType(schema=freeze(output), retries=None) if isinstance(output, Mapping) else None
        record = schema_type.record if schema_type else output_record(output, retries)
        return replace(self, tools=(), hooks=(), output_type=record)

    def build(self, session: SessionView) -> ToolLoop:
        """Return a runner with a client of its own.

        Raises:
            EngineError: the process has no credentials, or its ANTHROPIC_BASE_URL or key is unusable.
        """
        runner = self._runner(self.registry.definitions())
        # A tool may find this engine's key in the environment, so the key is removed from tool results.
        secrets = [runner.key] if len(runner.key) >= LONG else []
        loop = wrap(runner, self.middleware)
        return ToolLoop(
            loop, self.registry, self.hooks, close=runner.close, secrets=secrets, output_type=self.output_type
        )

    def refuses(self, block: Image | Document) -> str | None:
        """See `Selective`. With custom middleware, which may convert any block, nothing is refused."""
        return ANTHROPIC.refuses(block) if keeps_attachments(self.middleware) else None

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> AnthropicEngine:
        """See `Extensible`."""
        names = {*self._tool_names, *(tool.name for tool in self.registry.tools)}
        if taken := [name for name in tools if name in names]:
            reason = "the engine has a tool of this name: rename the run's"
            raise InvalidInputError("tools", shown(taken[0]), reason)
        return replace(self, tools=self.registry.extended(tools))

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`. Parameters that the API does not support are refused, never dropped."""
        reasons = {name: self._why_not(name, value) for name, value in params.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def _why_not(self, name: str, value: Any) -> str | None:
        """Return why a parameter is not supported; None if it is."""
        headers = {name.lower(): value for name, value in (self.default_headers or {}).items()}
        if reason := not_taken(name, value, self.thinking, headers.get("anthropic-version")):
            return reason
        if name == "parallel_tool_calls" and not self._tool_names:
            return "the engine has no tools"
        if name == "tool_choice" and forces_call(value):
            names = self._tool_names if isinstance(value, str) else (value["function"]["name"],)
            if not set(names).intersection(self._tool_names):
                return f"the engine has no such tool; it has {', '.join(self._tool_names) or 'none'}"
        return None

    @property
    def _tool_names(self) -> tuple[str, ...]:
        """The names of the tools that the model may call."""
        extra_names = [tool.get("name") or "" for tool in (self.extra or {}).get("tools", ())]
        return (*(tool.name for tool in self.registry.definitions()), *extra_names)

    def frame(self) -> RequestFrame:
        """See `Framed`. Changes by custom middleware are not included."""
        fields = self._api(self.registry.definitions(), "").fields
        replacing = replacing_prompt(self.middleware)
        return RequestFrame(
            model=self.model,
            system=joined_prompt(self.system, replacing),
            replaces_system=replacing is not None,
            tools=tuple(fields.get("tools") or ()),
            max_output_tokens=fields[LIMIT],
        )

    def _api(self, tools: Sequence[ToolDefinition], base_url: str) -> MessagesAPI:
        def refused(model: str) -> set[str]:
            return _REFUSED.setdefault((base_url, model), {"json_schema"})  # the API knows strict schemas only

        profile = Profile(
            name="anthropic",
            source="https://platform.claude.com/docs/en/api/messages",
            schema_with_tools=True,
            lacks=("tool_choice",) if self.thinking else (),  # a request that thinks must not force a call
        )
        return MessagesAPI(RequestSettings(self, tools, profile, refused, self.model))

    def _runner(self, tools: Sequence[ToolDefinition] = ()) -> OpenAIRunner:
        """Return a runner that declares these tools to the model."""
        base_url = self.base_url or os.environ.get("ANTHROPIC_BASE_URL") or None
        api_key = os.environ.get(self.api_key_variable) or None
        no_key = f"there are no credentials: set {self.api_key_variable} where the session runs, or pass base_url="
        if api_key is None and self.api_key_variable != _KEY_VARIABLE:  # else the client would send another key
            if base_url is None:
                raise EngineError(no_key)
            api_key = _NO_KEY
        if api_key is not None and not is_key(api_key):
            raise EngineError(f"{self.api_key_variable} must be ASCII text without spaces")
        try:
            check_url("ANTHROPIC_BASE_URL", base_url)
        except ConfigError as error:
            raise EngineError(str(error)) from error
        client = AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            default_headers=self.default_headers,
            default_query=self.default_query,
            timeout=Timeout(max(self.begins_within_s, self.timeout_s), connect=self.connect_timeout_s),
            max_retries=self.max_retries,
            http_client=self.http_client() if self.http_client else http_client(),
        )
        if not (client.api_key or client.auth_token or client.credentials):
            if base_url is None:
                raise EngineError(no_key)
            client.api_key = _NO_KEY
        return OpenAIRunner(self, client, self._api(tools, str(client.base_url)), anthropic)
