"""Provider profiles: how servers with OpenAI's APIs differ from OpenAI in what they accept.

A profile is chosen by its name (`OpenAIEngine(..., provider="deepseek")`), else by the host of the base URL. The engine
learns further differences at run time: if a server refuses a field that the engine added, the request is repeated
without it, and other refusals are recognized as lessons.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

LimitField = Literal["max_completion_tokens", "max_tokens"]

JsonMode = Literal["json_schema", "tool", "json_object"]
"""How an answer in JSON is requested: by the parameter for a schema; by a tool whose arguments are the answer; or by
JSON mode, with the schema in the instructions."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The requests that one kind of server accepts in the Chat Completions API."""

    name: str
    source: str
    """The URL of the documentation for it."""
    hosts: tuple[str, ...] = ()
    """The suffixes of its service's host names."""
    limit_field: LimitField = "max_completion_tokens"
    """The name of the parameter that limits the answer's tokens."""
    stream_options: bool = True
    """Whether the usage in a stream is requested by `stream_options`."""
    returns_thoughts: Literal["never", "known", "always"] = "never"
    """Whether assistant messages that call tools have their thoughts as `reasoning_content`: never, only if the
    conversation contains thoughts, or always, empty if there are none."""
    json_mode: JsonMode = "json_schema"
    schema_with_tools: bool = False
    """Whether a request may have both a schema and tools. If not, a model with tools answers by a tool: with a schema,
    vLLM and Ollama would call no tools, and Gemini and Groq refuse the request."""
    has_short_ids: bool = False
    """Whether ids of calls must have exactly nine letters and digits."""
    answers_results: bool = False
    """Whether an assistant message is required between tool results and the next prompt."""
    alternates: bool = False
    """Whether messages of the user and the assistant must alternate. If so, prompts in a row are one message."""
    names_authors: bool = False
    """Whether messages of the user may have a `name`."""
    has_content: bool = False
    """Whether a message with only tool calls must have text content, which may be empty."""
    unknown_keywords: frozenset[str] = frozenset()
    """JSON Schema keywords that it refuses in the parameters of tools."""
    has_long_ids: bool = False
    """Whether ids of calls may have any length. LiteLLM stores Gemini's signatures in them."""
    signs_calls: bool = False
    """Whether the server refuses calls without its signature; other models' calls then get a placeholder."""
    seed_field: str = "seed"
    """The name of the seed parameter."""
    takes_cache_key: bool = False
    """Whether requests have a `prompt_cache_key` by default: the same for all that begin alike."""
    session_header: str | None = None
    """The header by which the server, or a router before it, sends requests with the same key to the same replica."""
    lacks: tuple[str, ...] = ()
    """Parameters of runs that the server refuses or ignores; `tool_choice.function` is the choice of one function. A
    run with one of them is refused."""


CHAT_ONLY = frozenset({"seed", "stop", "frequency_penalty", "presence_penalty"})
"""Parameters of runs that the Responses API does not have."""


_OF_OPENAI = ("verbosity", "service_tier", "metadata")
"""Parameters of runs that few servers accept."""

OPENAI = Profile(
    name="openai",
    source="https://platform.openai.com/docs/api-reference/chat/create",
    hosts=("api.openai.com",),
    schema_with_tools=True,
    names_authors=True,
    takes_cache_key=True,
)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        OPENAI,
        Profile(
            name="azure",
            source="https://learn.microsoft.com/azure/ai-foundry/openai/latest",
            hosts=(".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
            schema_with_tools=True,
            names_authors=True,
            takes_cache_key=True,
        ),
        Profile(
            name="gemini",
            source="https://ai.google.dev/gemini-api/docs/openai",
            hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
            unknown_keywords=frozenset({"$schema", "const", "examples", "prefixItems"}),
            lacks=("frequency_penalty", "seed", "metadata"),
        ),
        Profile(
            name="deepseek",
            source="https://api-docs.deepseek.com/guides/thinking_mode",
            hosts=("api.deepseek.com",),
            limit_field="max_tokens",
            names_authors=True,
            returns_thoughts="known",
            json_mode="json_object",
            lacks=("seed", "parallel_tool_calls", *_OF_OPENAI, "prompt_cache_key", "safety_identifier"),
        ),
        Profile(
            name="kimi",
            source="https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
            hosts=("api.moonshot.ai", "api.moonshot.cn"),
            limit_field="max_tokens",
            returns_thoughts="known",
            json_mode="json_object",
            takes_cache_key=True,
            lacks=("seed", *_OF_OPENAI),
        ),
        Profile(
            name="mistral",
            source="https://docs.mistral.ai/api",
            hosts=("api.mistral.ai",),
            limit_field="max_tokens",
            stream_options=False,  # refused with 422; usage is always sent
            has_short_ids=True,
            answers_results=True,
            seed_field="random_seed",
            takes_cache_key=True,
            lacks=("verbosity", "service_tier", "safety_identifier"),
        ),
        Profile(
            name="groq",
            source="https://console.groq.com/docs/openai",
            hosts=("api.groq.com",),
            json_mode="tool",  # it accepts schemas neither in streams nor with tools
            lacks=(
                *("frequency_penalty", "presence_penalty", "verbosity", "metadata"),
                *("prompt_cache_key", "safety_identifier"),
            ),
        ),
        Profile(
            name="openrouter",
            source="https://openrouter.ai/docs/guides/best-practices/reasoning-tokens",
            hosts=("openrouter.ai",),
            limit_field="max_tokens",
            session_header="x-session-id",
        ),
        Profile(
            name="vllm",
            source="https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
            session_header="x-session-id",  # Ray Serve's; vLLM's own router reads the header of its --session-key
            lacks=(*_OF_OPENAI, "prompt_cache_key", "safety_identifier"),
        ),
        Profile(
            name="ollama",
            source="https://docs.ollama.com/api/openai-compatibility",
            limit_field="max_tokens",
            has_content=True,
            lacks=("tool_choice", "parallel_tool_calls", *_OF_OPENAI, "prompt_cache_key", "safety_identifier"),
        ),
        Profile(
            name="llama.cpp",
            source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
            limit_field="max_tokens",
            lacks=("tool_choice.function", *_OF_OPENAI, "prompt_cache_key", "safety_identifier"),
        ),
        Profile(
            name="litellm",
            source="https://docs.litellm.ai/docs/proxy/user_keys",
            has_long_ids=True,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A rule for learning from a server's refusal what it accepts."""

    name: str
    pattern: str
    """The regular expression that recognizes the refusal's message."""
    source: str
    """The URL of a report of this refusal."""
    learned: Mapping[str, Any]
    """Fields of the profile to change after the refusal."""


LESSONS: tuple[Lesson, ...] = (
    Lesson(
        name="short ids",
        pattern=r"must be a-z, A-Z, 0-9, with a length of 9",
        source="https://github.com/anomalyco/opencode/issues/1680",
        learned={"has_short_ids": True},
    ),
    Lesson(
        name="bounded ids",
        pattern=r"(?s)(tool_calls?|call_id|id)\b.{0,40}string too long",
        source="https://github.com/openclaw/openclaw/pull/875",
        learned={"has_long_ids": False},
    ),
    Lesson(
        name="answered results",
        pattern=r"Unexpected role 'user' after role 'tool'",
        source="https://github.com/NousResearch/hermes-agent/issues/20154",
        learned={"answers_results": True},
    ),
    Lesson(
        name="alternating roles",
        pattern=r"roles must alternate|roles should be alternating|should alternate with assistant",
        source="https://github.com/perplexityai/api-discussion/issues/265",
        learned={"answers_results": True, "alternates": True},
    ),
    Lesson(
        name="thoughts",
        pattern=r"reasoning_content\W.{0,60}(must be passed back|is missing)|[Mm]issing\W{1,3}reasoning_content",
        source="https://github.com/decolua/9router/issues/773",
        learned={"returns_thoughts": "always"},
    ),
    Lesson(
        name="content",
        pattern=r"invalid message content type: <nil>",
        source="https://github.com/pydantic/pydantic-ai/issues/5206",
        learned={"has_content": True},
    ),
    Lesson(
        name="signatures",
        pattern=r"missing a \W?thought_signature",
        source="https://github.com/earendil-works/pi/pull/1825",
        learned={"signs_calls": True},
    ),
)

_UNKNOWN_KEYWORD = r"""Unknown name \\*"([\w$]+)\\*" at \\*'[\w.]*\btools\b"""
"""Gemini's refusal of a keyword, as in https://github.com/AstrBotDevs/AstrBot/issues/7572."""

_KEYWORD = "keyword "


def lessons_of(message: str) -> set[str]:
    """Return the names of the lessons that a refusal's message teaches."""
    keywords = {_KEYWORD + keyword for keyword in re.findall(_UNKNOWN_KEYWORD, message)}
    return keywords | {lesson.name for lesson in LESSONS if re.search(lesson.pattern, message)}


def taught(profile: Profile, lessons: Collection[str]) -> Profile:
    """Return the profile changed by these lessons. Names that are not lessons are ignored."""
    if not lessons:
        return profile
    for lesson in LESSONS:
        if lesson.name in lessons:
            profile = replace(profile, **lesson.learned)
    keywords = {name.removeprefix(_KEYWORD) for name in lessons if name.startswith(_KEYWORD)}
    return replace(profile, unknown_keywords=profile.unknown_keywords | keywords) if keywords else profile


def profile_of(provider: str | None, host: str) -> Profile:
    """Return the profile with this name or, if the name is None, of this host.

    An unknown host gets OpenAI's profile under its own name, with ids of any length, since it accepts its own ids.

    Raises:
        KeyError: there is no profile with this name.
    """
    if provider is not None:
        return PROFILES[provider]
    for profile in PROFILES.values():
        if host.endswith(profile.hosts):
            return profile
    return Profile(name=host, source=OPENAI.source, has_long_ids=True)


def pack_attached(provider: str, **attached: Any) -> str:
    """Return a signature with the data that a provider attached to a call or a thought, to be sent back."""
    return json.dumps({"provider": provider, **attached}, separators=(",", ":"))


def unpack_attached(signature: str | None, provider: str, name: str) -> Any:
    """Return the data that `pack_attached` stored under this name for this provider; None if there is none."""
    if not signature or not signature.startswith('{"provider":'):
        return None
    try:
        packed = json.loads(signature)
    except ValueError:
        return None
    return packed.get(name) if packed.get("provider") == provider else None
