"""`RequestSettings`: what the requests of an API are made of, beside the conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from turnwise.actors.inference.openai.settings import EngineSettings
from turnwise.actors.inference.openai.structured_output import Form, choose, tool_names
from turnwise.actors.inference.tools.tool import ToolDefinition
from turnwise.memory.conversation.model_params import forces_call
from turnwise.memory.conversation.output_type import OutputType
from turnwise.memory.providers.endpoints import Profile, taught

CACHE_KEY = "prompt_cache_key"

FORM_FIELDS = frozenset(
    # of tools, and what servers do as tools
    {"tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "functions", "function_call"}
    | {"web_search_options", "plugins", "mcp_servers", "container"}
    # of the form of answers, also as vLLM, SGLang, llama.cpp and Ollama name them
    | {"response_format", "modalities", "audio", "prediction", "structured_outputs", "guided_json", "guided_regex"}
    | {"guided_choice", "guided_grammar", "regex", "ebnf", "grammar", "json_schema", "format", "logit_bias"}
    # of where answers end, and instructions that the server keeps
    | {"stop", "stop_sequences", "stop_token_ids", "stop_regex", "prompt"}
)
"""Fields of requests, by any server, that give answers a form or a source."""

_FORM_WITHIN = {"text": "format", "output_config": "format"}
"""Such fields within others: those of the Responses API and of Anthropic's."""

Engine_co = TypeVar("Engine_co", bound=EngineSettings, covariant=True)


@dataclass(frozen=True)
class RequestSettings(Generic[Engine_co]):
    """The engine's settings, the run's model and parameters, and what the server accepts of them."""

    engine: Engine_co
    tools: Sequence[ToolDefinition]
    given_profile: Profile
    """The server's profile, without what this process has learnt from refusals."""
    refused_by: Callable[[str], set[str]]
    """Returns the set of what the server has refused for a model; changes to the set are seen by all sessions."""
    model: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """See `ModelParams`."""
    is_later_step: bool = False
    """Whether the model has called tools earlier in this run."""
    prefix_key: str = ""
    """See `RunContext.prefix_key`."""
    is_aside: bool = False
    """Whether it is a question of turnwise's own: see `ASIDE`."""

    def of_run(
        self,
        model: str | None,
        params: Mapping[str, Any],
        tools: Sequence[ToolDefinition] = (),
        *,
        is_later_step: bool,
        prefix_key: str = "",
        is_aside: bool = False,
    ) -> RequestSettings[Engine_co]:
        """Return the settings for one step of a run, which has these tools beside the engine's.

        Args:
            is_aside: whether it is no run but a question of turnwise's own, which gets none of the engine's tools.
        """
        tools = tuple(tools) if is_aside else (*self.tools, *tools)
        changes: dict[str, Any] = {"params": params, "tools": tools, "is_later_step": is_later_step}
        return replace(self, model=model or self.engine.model, prefix_key=prefix_key, is_aside=is_aside, **changes)

    @property
    def refused(self) -> set[str]:
        """What the server has refused for this model: names of fields, and ways to request typed answers."""
        return self.refused_by(self.model)

    @property
    def profile(self) -> Profile:
        """The server's profile, as far as it is known now."""
        return taught(self.given_profile, frozenset(self.refused))  # a copy: a thread may make a request meanwhile

    @property
    def cache_key(self) -> dict[str, str]:
        """The field that tells the server which requests begin alike; none where the server does not take it."""
        is_sent = self.prefix_key and self.profile.takes_cache_key and CACHE_KEY not in self.refused
        return {CACHE_KEY: self.prefix_key} if is_sent else {}

    def form(self, output: OutputType, fields: Mapping[str, Any]) -> Form:
        """Return how to ask for an answer of this type in a request with these fields."""
        return choose(output, self.profile, tool_names(fields), self.refused)

    def fields(self, own: Mapping[str, Any], limit_field: str, declared: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the request's fields, without the run's parameters.

        Args:
            own: fields that only one API has; the engine's `extra` replaces them.
            limit_field: the name of the field for the maximum length of an answer.
            declared: the engine's tools in the API's format.
        """
        fields = dict(own)
        if not self.engine.stream:
            fields["stream"] = False
        if self.engine.temperature is not None:
            fields["temperature"] = self.engine.temperature
        if self.engine.max_output_tokens is not None:
            fields[limit_field] = self.engine.max_output_tokens
        extra = self.engine.extra or {}
        fields.update(without_form(extra) if self.is_aside else extra)
        if tools := [*declared, *fields.get("tools", ())]:
            fields["tools"] = tools
        return fields

    def of_step(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields for this step of the run.

        In a later step, the model decides whether it calls a tool. Without tools, the fields about their choice are
        left out, since providers refuse them.
        """
        if not fields.get("tools"):
            return {name: value for name, value in fields.items() if name not in ("tool_choice", "parallel_tool_calls")}
        if self.is_later_step and forces_call(fields.get("tool_choice")):
            fields["tool_choice"] = "auto"
        return fields


def without_form(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request without those that give its answer a form."""
    kept = {name: value for name, value in fields.items() if name not in FORM_FIELDS}
    for outer, inner in _FORM_WITHIN.items():
        if isinstance(whole := kept.get(outer), Mapping) and inner in whole:
            kept[outer] = {name: value for name, value in whole.items() if name != inner}
    return kept
