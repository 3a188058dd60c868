"""`OpenAIEngine` and `AzureOpenAI`: settings of an engine for OpenAI's two APIs and compatible servers."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from turnwise.actors.inference.cache_hints import CacheHints
from turnwise.actors.inference.engine import RequestFrame, SessionView
from turnwise.actors.inference.middleware import Middleware, wrap
from turnwise.actors.inference.openai.chat import LIMITS, ChatAPI
from turnwise.actors.inference.openai.request import RequestSettings
from turnwise.actors.inference.openai.responses import ResponsesAPI
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.openai.settings import (
    check,
    check_settings,
    check_url,
    http_client,
    is_header,
    is_key,
    joined_prompt,
    keeps_attachments,
    replacing_prompt,
)
from turnwise.actors.inference.redaction import LONG
from turnwise.actors.inference.replicas import Replicas
from turnwise.actors.inference.tools.loop import Hook, ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.signature import output_record
from turnwise.actors.inference.tools.tool import Tool, ToolDefinition
from turnwise.errors import ConfigError, EngineError, InvalidInputError, shown
from turnwise.memory.conversation.blocks import Document, Image
from turnwise.memory.conversation.model_params import forces_call
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.providers.endpoints import CHAT_ONLY, PROFILES, Profile, profile_of
from turnwise.memory.providers.validation import CHAT, RESPONSES
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.required_arguments import needs

if TYPE_CHECKING:
    import httpx2

_RESERVED = {
    "chat": {"model", "messages", "stream", "stream_options", "store"},
    "responses": {"model", "input", "instructions", "stream", "store"},
}

_REFUSED: dict[tuple[str, str, str], set[str]] = {}
"""Fields that a server has refused in this process, by base URL, API and model; they are not sent again."""

_NO_KEY = "no-api-key"
"""The key that is sent to a server that needs none."""


@needs(endpoint="pass the resource's URL, such as AzureOpenAI(endpoint='https://name.openai.azure.com')")
@dataclass(frozen=True, kw_only=True)
class AzureOpenAI:
    """A resource of Azure OpenAI. The engine's `model` is the name of the deployment."""

    endpoint: str
    """The resource's URL without a path, such as https://my-resource.openai.azure.com."""
    api_version: str | None = None
    """The version for the older API path, such as 2024-10-21. If omitted, the v1 path is used."""

    def __post_init__(self) -> None:
        check_url("endpoint", self.endpoint)


@needs(model="name a model, such as OpenAIEngine('gpt-5')")
@dataclass(frozen=True)
class OpenAIEngine:
    """Streams answers from a model behind the Chat Completions API or the Responses API.

    The engine holds settings only and is pickled to the sessions' processes, with its key; to avoid that, omit
    `api_key` and set OPENAI_API_KEY where the sessions run. It imports and connects nothing before `build`.
    """

    model: str
    """The provider's name for the model."""
    _: KW_ONLY
    api: Literal["chat", "responses"] = "chat"
    """Nearly every server has "chat". With "responses", the model continues from its reasoning before tool calls and in
    earlier turns: each request returns that reasoning encrypted, and OpenAI stores nothing."""
    provider: str | None = None
    """The server's profile, if the host of `base_url` does not identify it: one of `PROFILES`, such as "vllm"."""
    system: str | None = None
    """A system prompt before the conversation's own (its last `System` block) in every request; never stored.
    `SystemPrompt` in `middleware` replaces that of the conversation instead.

    Questions of turnwise's own, such as for a title, a summary or facts, keep theirs. They also get no tools, and
    nothing else that gives the engine's answers a form: neither `output_type` nor such fields of `extra`."""
    base_url: str | None = None
    """The API's URL; if omitted, OPENAI_BASE_URL, else OpenAI's own. Its query is sent with each request."""
    azure: AzureOpenAI | None = None
    """An Azure OpenAI resource, instead of `base_url`."""
    api_key: str | Callable[[], str | Awaitable[str]] | None = field(default=None, repr=False)
    """The key; OPENAI_API_KEY if omitted; optional if there is a base URL. A function is called before each request, so
    it can return tokens that expire; it must be picklable."""
    organization: str | None = None
    """The OpenAI organization that is charged; OPENAI_ORG_ID if omitted."""
    project: str | None = None
    """The OpenAI project that is charged; OPENAI_PROJECT_ID if omitted."""
    default_headers: Mapping[str, str] | None = field(default=None, repr=False)
    """More headers for each request. They are pickled to the sessions' processes, like the key."""
    default_query: Mapping[str, str] | None = None
    """More query parameters for each request."""
    router: Replicas | None = None
    """Several servers of the model, instead of `base_url`: each session keeps to the one that has its prefix."""
    cache_hints: CacheHints | None = None
    """Tells the server when a session needs its prefix again, such as `HTTPHints`; None: no hints are sent."""
    session_header: str | None = None
    """A header by which a router before several servers sends a session's requests to the same one, such as
    "x-session-id". If omitted, that of the server's profile; empty for none."""
    http_client: Callable[[], httpx2.AsyncClient] | None = None
    """Makes the HTTP client of a session, for example with a proxy or custom certificates; must be picklable."""
    stream: bool = True
    """Whether answers are streamed. Set it to False for a gateway that cannot; then the text arrives in one piece."""
    store: bool | None = None
    """Whether OpenAI stores the answer. With "responses" it does so only if this is True."""
    connect_timeout_s: float = 5.0
    """The time limit for connecting, in seconds."""
    first_byte_s: float | None = None
    """The time limit until an answer begins, with all retries, in seconds; `timeout_s` if omitted. Raise it for a
    server that loads its model at the first request."""
    timeout_s: float = 60.0
    """The longest pause within an answer, in seconds. `run(timeout_s=...)` limits the whole run."""
    max_retries: int = 2
    """How often the client repeats a request after a temporary refusal (408, 409, 429, 5xx) or a connection error."""
    temperature: float | None = None
    """0 or more; the model's default if omitted."""
    max_output_tokens: int | None = None
    """The limit includes reasoning tokens. For a chat server with the older name: `extra={"max_tokens": ...}`."""
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
        check("api", self.api, self.api in _RESERVED, "must be 'chat' or 'responses'")
        check("provider", self.provider, self.provider in (None, *PROFILES), f"must be one of {', '.join(PROFILES)}")
        check("azure", self.azure, self.azure is None or self.base_url is None, "cannot be combined with base_url")
        is_one = self.router is None or (self.azure is None and self.base_url is None)
        check("router", self.router, is_one, "cannot be combined with base_url or azure")
        for url in self.router.urls if self.router else ():
            check_url("router", url)
        is_text = self.api_key is None or callable(self.api_key) or is_key(self.api_key)
        check("api_key", "***", is_text, "must be ASCII text without spaces, or a function that returns it")
        hints = self.cache_hints
        check("cache_hints", hints, hints is None or isinstance(hints, CacheHints), "must be CacheHints")
        header = self.session_header
        check("session_header", header, header is None or is_header(header), "must be the name of a header, or empty")
        check_settings(self, _RESERVED[self.api])

    @property
    def registry(self) -> ToolRegistry:
        """The engine's tools, with the rules for calling them."""
        return self.tools if isinstance(self.tools, ToolRegistry) else ToolRegistry(*self.tools)

    def answering(self, output: Any, *, retries: int = 2) -> OpenAIEngine:
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
            EngineError: there is no key to use, or the environment's OPENAI_BASE_URL or OPENAI_API_KEY is unusable.
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
        rules = CHAT if self.api == "chat" else RESPONSES
        return rules.refuses(block) if keeps_attachments(self.middleware) else None

    def extended(self, tools: Mapping[str, Mapping[str, Any]]) -> OpenAIEngine:
        """See `Extensible`."""
        names = {*self._tool_names, *(tool.name for tool in self.registry.tools)}
        if taken := [name for name in tools if name in names]:
            reason = "the engine has a tool of this name: rename the run's"
            raise InvalidInputError("tools", shown(taken[0]), reason)
        return replace(self, tools=self.registry.extended(tools))

    def not_taken(self, model: str | None, params: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Steerable`. Parameters that the server's profile or API does not support are refused, never dropped."""
        reasons = {name: self._why_not(name, value) for name, value in params.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def _why_not(self, name: str, value: Any) -> str | None:
        """Return why a parameter is not supported; None if it is."""
        if self.api == "responses" and name in CHAT_ONLY:
            return "the Responses API has no such parameter: omit it, or use api='chat'"
        profile, is_chat = self._profile, self.api == "chat"
        variant = f"{name}.{value['type']}" if isinstance(value, Mapping) and "type" in value else name
        if is_chat and {name, variant}.intersection(profile.lacks):
            return f"provider {profile.name!r} does not support it: omit it; see {profile.source}"
        if is_chat and variant == "response_format.json_schema" and profile.json_mode == "json_object":
            remedy = "use {'type': 'json_object'}, and describe the format in the prompt"
            return f"provider {profile.name!r} does not support schemas: {remedy}"
        if name == "parallel_tool_calls" and not self._tool_names:
            return "the engine has no tools"
        if name == "tool_choice" and forces_call(value):
            names = self._tool_names if isinstance(value, str) else (value["function"]["name"],)
            if not set(names).intersection(self._tool_names):
                return f"the engine has no such tool; it has {', '.join(self._tool_names) or 'none'}"
        return None

    @property
    def _profile(self) -> Profile:
        """The profile of the server, as far as this process can identify it."""
        url = self.azure.endpoint if self.azure else self._first_url or os.environ.get("OPENAI_BASE_URL")
        return profile_of(self.provider, urlsplit(url or "").hostname or "")

    @property
    def _first_url(self) -> str | None:
        return self.router.urls[0] if self.router else self.base_url

    @property
    def _tool_names(self) -> tuple[str, ...]:
        """The names of the tools that the model may call."""
        entries = (self.extra or {}).get("tools", ())
        named = [entry.get("function", entry) for entry in entries]
        return (
            *(tool.name for tool in self.registry.definitions()),
            *(tool_entry.get("name") or "" for tool_entry in named),
        )

    def frame(self) -> RequestFrame:
        """See `Framed`.

        `system` is the engine's own, then the text of the last `SystemPrompt` middleware with `if_present="replace"`.
        A `SystemPrompt` that keeps the conversation's own is left out; if the conversation has none, the request is
        longer by that text. Changes by other middleware are not included. Of several output limits, the largest counts.
        """
        fields = self._api(self.registry.definitions(), self._first_url or "", "").fields
        replacing = replacing_prompt(self.middleware)
        limits = [limit for name in LIMITS if isinstance(limit := fields.get(name), int) and limit > 0]
        return RequestFrame(
            model=self.model,
            system=joined_prompt(self.system, replacing),
            replaces_system=replacing is not None,
            tools=tuple(fields.get("tools") or ()),
            max_output_tokens=max(limits, default=None),
        )

    def _api(self, tools: Sequence[ToolDefinition], base_url: str, host: str) -> ChatAPI | ResponsesAPI:
        def refused(model: str) -> set[str]:
            return _REFUSED.setdefault((base_url, self.api, model), set())

        profile = profile_of(self.provider or ("azure" if self.azure else None), host)
        if self.session_header is not None:
            profile = replace(profile, session_header=self.session_header)
        settings = RequestSettings(self, tools, profile, refused, self.model)
        return ChatAPI(settings) if self.api == "chat" else ResponsesAPI(settings)

    def _runner(self, tools: Sequence[ToolDefinition] = ()) -> OpenAIRunner:
        """Return a runner that declares these tools to the model."""
        import openai

        base_url = self._first_url or (None if self.azure else os.environ.get("OPENAI_BASE_URL")) or None
        api_key = self.api_key or os.environ.get("OPENAI_API_KEY") or None
        if api_key is None and base_url is None:
            raise EngineError("there is no API key: set OPENAI_API_KEY where the session runs, or pass api_key=")
        if api_key is not None and not callable(api_key) and not is_key(api_key):
            raise EngineError("OPENAI_API_KEY must be ASCII text without spaces")
        try:
            check_url("OPENAI_BASE_URL", base_url)
        except ConfigError as error:
            raise EngineError(str(error)) from error
        base_url, query = _without_query(base_url)
        settings: dict[str, Any] = {
            "api_key": (_async_key(api_key) if callable(api_key) else api_key) or _NO_KEY,
            "default_headers": self.default_headers,
            "default_query": {**query, **(self.default_query or {})} or None,
            "timeout": openai.Timeout(max(self.begins_within_s, self.timeout_s), connect=self.connect_timeout_s),
            "max_retries": self.max_retries,
            "http_client": self.http_client() if self.http_client else http_client(),
        }
        client: openai.AsyncOpenAI
        if self.azure and self.azure.api_version:
            token = {"azure_ad_token_provider": settings.pop("api_key")} if callable(api_key) else {}
            client = openai.AsyncAzureOpenAI(
                azure_endpoint=self.azure.endpoint,
                api_version=self.azure.api_version,
                **token,
                **settings,
            )
        else:
            base_url = f"{self.azure.endpoint.rstrip('/')}/openai/v1" if self.azure else base_url
            client = openai.AsyncOpenAI(
                base_url=base_url, organization=self.organization, project=self.project, **settings
            )
        api = self._api(tools, str(client.base_url), client.base_url.host)
        return OpenAIRunner(self, client, api, openai, self.router)

    @property
    def begins_within_s(self) -> float:
        """The time limit until an answer begins, in seconds."""
        return self.timeout_s if self.first_byte_s is None else self.first_byte_s


def _without_query(base_url: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the URL without its query, and the query, which the client would drop."""
    parts = urlsplit(base_url or "")
    return base_url and urlunsplit(parts._replace(query="")), dict(parse_qsl(parts.query, keep_blank_values=True))


def _async_key(api_key: Callable[[], str | Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    """Return the key function as an asynchronous one, as the client needs; a synchronous one runs in a thread."""

    async def ask() -> str:
        if inspect.iscoroutinefunction(api_key):
            return str(await api_key())
        key = await asyncio.to_thread(api_key)
        return str(await key) if inspect.isawaitable(key) else str(key)

    return ask
