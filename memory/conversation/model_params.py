"""`ModelParams`: the request parameters of a run or a session, named as the `openai` client names them."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic supports typing.TypedDict from Python 3.12 on

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.values.frozen_json import FrozenDict, freeze, plain_json

MAX_PARAMS_BYTES = 65_536
"""The most bytes that a run's parameters may take as JSON in UTF-8. They may include a JSON schema."""

MAX_STOPS = 16
"""The most stop texts. OpenAI accepts 4."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Limits of a request's metadata: entries, characters of a key, characters of a value. OpenAI has the same."""

Stop = str | Sequence[str]

ToolChoice = Literal["auto", "none", "required"] | Mapping[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""A valid name of a function or of a schema."""


def _stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ValueError("must be a text, or a list of texts, none of them empty")
    if not 1 <= len(stops) <= MAX_STOPS:
        raise ValueError(f"must be 1 to {MAX_STOPS} texts, not {len(stops)}")
    return stops


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _tool_choice(value: Any) -> Any:
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return value
    if isinstance(value, dict) and value.get("type") == "function":
        function = value.get("function", {key: field for key, field in value.items() if key != "type"})
        is_alone = "function" not in value or len(value) == 2  # noqa: PLR2004 - the type and the function
        if is_alone and isinstance(function, dict) and function.keys() == {"name"} and _is_name(function["name"]):
            return {"type": "function", "function": function}
    raise ValueError('must be "auto", "none", "required", or {"type": "function", "function": {"name": ...}}')


def _response_format(value: Any) -> Any:
    if value in ({"type": "text"}, {"type": "json_object"}):
        return value
    if isinstance(value, dict) and value.get("type") == "json_schema":
        form = value.get("json_schema", {key: field for key, field in value.items() if key != "type"})
        is_alone = "json_schema" not in value or len(value) == 2  # noqa: PLR2004 - the type and the schema
        if is_alone and isinstance(form, dict) and form.keys() <= {"name", "schema", "strict", "description"}:
            fits = (
                _is_name(form.get("name")),
                isinstance(form.get("schema"), dict),
                isinstance(form.get("strict"), bool | None),
                isinstance(form.get("description"), str | None),
            )
            if all(fits):
                return {"type": "json_schema", "json_schema": form}
    reason = 'must be {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {...}}'
    raise ValueError(f"{reason} with a name, a schema and nothing else but strict and description")


def _metadata(value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise ValueError("must map texts to texts")
    if len(value) > MAX_METADATA:
        raise ValueError(f"must be at most {MAX_METADATA} texts, not {len(value)}")
    longest = max(map(len, value), default=0), max(map(len, value.values()), default=0)
    if longest[0] > MAX_METADATA_KEY or longest[1] > MAX_METADATA_VALUE:
        limits = f"{MAX_METADATA_KEY} characters, and values of {MAX_METADATA_VALUE}"
        raise ValueError(f"must have keys of at most {limits}")
    return value


_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Word = Annotated[str, Field(min_length=1, max_length=512)]


@with_config(ConfigDict(strict=True, extra="forbid"))
class ModelParams(TypedDict, total=False):
    """Parameters of each request of a run, named as the `openai` client names them, for every API.

    A run's parameter overrides the session's parameter of the same name, which overrides the engine's setting. None
    removes the session's parameter, so that the engine's setting applies.
    """

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    """0 or more."""
    top_p: _Share | None
    """0 to 1."""
    frequency_penalty: _Penalty | None
    """-2 to 2."""
    presence_penalty: _Penalty | None
    """-2 to 2."""
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None
    """The most tokens of an answer, reasoning included. Sent under the name that the server expects."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None
    """The same seed gives the same answers, as far as the provider supports it."""
    stop: Annotated[Stop, PlainValidator(_stop)] | None
    """One text, or up to 16 texts: the answer ends where one of them occurs."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
    """How much the model reasons. Each model supports some of these values."""
    verbosity: Literal["low", "medium", "high"] | None
    """How long answers are."""
    tool_choice: Annotated[ToolChoice, PlainValidator(_tool_choice)] | None
    """`auto`, `none`, `required`, or `{"type": "function", "function": {"name": ...}}`. A choice that forces a tool
    call applies to the first step of a run; the later steps use `auto`."""
    parallel_tool_calls: bool | None
    """Whether one answer may have several tool calls."""
    response_format: Annotated[Mapping[str, Any], PlainValidator(_response_format)] | None
    """`{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}`."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "on_demand", "performance"] | None
    """The provider's speed and price class. The last two are Groq's."""
    metadata: Annotated[Mapping[str, str], PlainValidator(_metadata)] | None
    """Up to 16 texts that the provider keeps with the request."""
    prompt_cache_key: _Word | None
    """Requests with the same key share the provider's prompt cache."""
    safety_identifier: _Word | None
    """An opaque id that lets the provider tell users apart."""


PARAMS: tuple[str, ...] = tuple(ModelParams.__annotations__)
"""The names of all parameters."""


def _setting_names(names: Any) -> tuple[str, ...]:
    allowed = ("model", *PARAMS)
    if isinstance(names, str) or not set(names) <= set(allowed):
        raise ValueError(f"must be names among {', '.join(allowed)}")
    return tuple(names)


SettingsTaken = Annotated[Collection[str], PlainValidator(_setting_names)]
"""The settings of runs that an engine applies: `model` and names of `ModelParams`."""

_ELSEWHERE = {
    "model": "pass it beside params: model=",
    "max_tokens": "it is called max_output_tokens here, whichever API is asked",
    "max_completion_tokens": "it is called max_output_tokens here, whichever API is asked",
    "reasoning": "pass reasoning_effort",
    "text": "pass response_format or verbosity",
    "n": "one answer is kept, so one is asked for",
    "messages": "pass prompts",
    "input": "pass prompts",
    "stream": "it is a setting of the engine",
    "stream_options": "it is a setting of the engine",
    "store": "it is a setting of the engine",
    "tools": "pass tools of one run beside params: tools=; others are settings of the engine",
    "instructions": "pass it beside params: instructions=",
    "timeout": "pass timeout_s beside params",
    "extra_body": "other fields are settings of the engine: OpenAIEngine(extra=...)",
    "extra_headers": "headers are settings of the engine: OpenAIEngine(default_headers=...)",
}
"""Parameters of the `openai` client that are not accepted here, and what to do instead."""


def check_params(field: str, value: object) -> FrozenDict:
    """Return a caller's parameters, validated and normalized. None stands for a parameter to remove.

    Raises:
        InvalidInputError: a name, a type or a value is wrong; names the parameter.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(field, shown(value), "must be a mapping, such as {'temperature': 0.2}")
    plain = plain_json(field, value, MAX_PARAMS_BYTES)
    try:
        checked: FrozenDict = freeze(_adapter().validate_python(plain))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if first["type"] == "extra_forbidden":
            reason = _ELSEWHERE.get(name) or f"there is no such parameter; there are {', '.join(PARAMS)}"
        raise InvalidInputError(f"{field}[{shown(name)}]", shown(plain[name]), reason) from None
    return checked


@functools.cache
def _adapter() -> TypeAdapter[ModelParams]:
    return TypeAdapter(ModelParams)


def merged(params: Mapping[str, Any], over: Mapping[str, Any]) -> FrozenDict:
    """Return `params` updated with `over`. A name whose value in `over` is None is removed."""
    return FrozenDict({name: value for name, value in {**params, **over}.items() if value is not None})


def forces_call(tool_choice: object) -> bool:
    """Return whether a tool choice forces the model to call a tool."""
    return tool_choice is not None and tool_choice not in ("auto", "none")


def of_later_step(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters for a run's later steps: without a forced tool call, since such a run would never end."""
    return FrozenDict({**params, "tool_choice": "auto"}) if forces_call(params.get("tool_choice")) else params
