"""Provider profiles: what servers behind OpenAI's APIs take beyond, or in place of, what OpenAI takes.

A profile is chosen by its name (`OpenAIEngine(..., provider="deepseek")`), else by the host of the base URL. What no
profile says is found out at run time: a server that refuses a field which the engine added is asked again without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LimitField = Literal["max_completion_tokens", "max_tokens"]

JsonMode = Literal["json_schema", "json_object"]
"""How a server is told to answer in JSON of a schema: by the schema; by asking for JSON, with the schema in the
instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one kind of server takes in the Chat Completions API."""

    name: str
    source: str
    """Where it says so."""
    hosts: tuple[str, ...] = ()
    """How the hosts of its own service end."""
    limit_field: LimitField = "max_completion_tokens"
    """What the limit of an answer is called."""
    stream_options: bool = True
    """Whether usage has to be, and can be, asked for in a stream."""
    returns_thoughts: bool = False
    """Whether an assistant message that calls tools must carry the thoughts behind it, as `reasoning_content`."""
    json_mode: JsonMode = "json_schema"


OPENAI = Profile(
    name="openai",
    source="https://platform.openai.com/docs/api-reference/chat/create",
    hosts=("api.openai.com",),
)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        OPENAI,
        Profile(
            name="azure",
            source="https://learn.microsoft.com/azure/ai-foundry/openai/latest",
            hosts=(".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
        ),
        Profile(
            name="gemini",
            source="https://ai.google.dev/gemini-api/docs/openai",
            hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
        ),
        Profile(
            name="deepseek",
            source="https://api-docs.deepseek.com/guides/thinking_mode",
            hosts=("api.deepseek.com",),
            limit_field="max_tokens",
            returns_thoughts=True,
            json_mode="json_object",
        ),
        Profile(
            name="kimi",
            source="https://platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model",
            hosts=("api.moonshot.ai", "api.moonshot.cn"),
            limit_field="max_tokens",
            returns_thoughts=True,
            json_mode="json_object",
        ),
        Profile(
            name="mistral",
            source="https://docs.mistral.ai/api",
            hosts=("api.mistral.ai",),
            limit_field="max_tokens",
            stream_options=False,  # refused with 422; usage comes unasked
        ),
        Profile(
            name="groq",
            source="https://console.groq.com/docs/openai",
            hosts=("api.groq.com",),
        ),
        Profile(
            name="openrouter",
            source="https://openrouter.ai/docs/guides/best-practices/reasoning-tokens",
            hosts=("openrouter.ai",),
            limit_field="max_tokens",
        ),
        Profile(
            name="vllm",
            source="https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        ),
        Profile(
            name="ollama",
            source="https://docs.ollama.com/api/openai-compatibility",
            limit_field="max_tokens",
        ),
        Profile(
            name="llama.cpp",
            source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
            limit_field="max_tokens",
        ),
        Profile(
            name="litellm",
            source="https://docs.litellm.ai/docs/proxy/user_keys",
        ),
    )
}


def profile_of(provider: str | None, host: str) -> Profile:
    """Return the profile of this name, else that of the host; one of an unknown server is OpenAI's, under its host.

    Raises:
        KeyError: there is no profile of this name.
    """
    if provider is not None:
        return PROFILES[provider]
    for profile in PROFILES.values():
        if host.endswith(profile.hosts):
            return profile
    return Profile(name=host, source=OPENAI.source)


def pack_attached(provider: str, **attached: Any) -> str:
    """Return a signature that keeps what a provider attached to a call or a thought, so that it can be sent back."""
    return json.dumps({"provider": provider, **attached}, separators=(",", ":"))


def unpack_attached(signature: str | None, provider: str, name: str) -> Any:
    """Return what `pack_attached` kept under this name for this provider; None if there is none, or it is another's."""
    if not signature or not signature.startswith('{"provider":'):
        return None
    try:
        packed = json.loads(signature)
    except ValueError:
        return None
    return packed.get(name) if packed.get("provider") == provider else None
