"""What a run or a session asks of its model: parameters of requests, named as the client of `openai` names them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic reads that of the standard library from Python 3.12 on

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.frozen_json import FrozenDict, freeze, plain_json

MAX_PARAMS_BYTES = 65_536
"""The largest parameters of a run, as JSON in UTF-8: a schema is among them."""

MAX_STOPS = 16
"""How many texts may end an answer; OpenAI takes 4."""

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Of the metadata of a request: how many, and the most characters of a key and of a value, as OpenAI has them."""

Stop = str | Sequence[str]

ToolChoice = Literal["auto", "none", "required"] | Mapping[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Of a function or of a schema."""


def _stop(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
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
        named = value.get("function", {key: each for key, each in value.items() if key != "type"})
        is_alone = "function" not in value or len(value) == 2  # noqa: PLR2004 - the type and the function
        if is_alone and isinstance(named, dict) and named.keys() == {"name"} and _is_name(named["name"]):
            return {"type": "function", "function": named}
    raise ValueError('must be "auto", "none", "required", or {"type": "function", "function": {"name": ...}}')


def _response_format(value: Any) -> Any:
    if value in ({"type": "text"}, {"type": "json_object"}):
        return value
    if isinstance(value, dict) and value.get("type") == "json_schema":
        form = value.get("json_schema", {key: each for key, each in value.items() if key != "type"})
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
    why = 'must be {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {...}}'
    raise ValueError(f"{why} with a name, a schema and nothing else but strict and description")


def _metadata(value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError("must map texts to texts")
    if len(value) > MAX_METADATA:
        raise ValueError(f"must be at most {MAX_METADATA} texts, not {len(value)}")
    longest = max(map(len, value), default=0), max(map(len, value.values()), default=0)
    if longest[0] > MAX_METADATA_KEY or longest[1] > MAX_METADATA_VALUE:
        most = f"{MAX_METADATA_KEY} characters, and values of {MAX_METADATA_VALUE}"
        raise ValueError(f"must have keys of at most {most}")
    return value


_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Word = Annotated[str, Field(min_length=1, max_length=512)]


@with_config(ConfigDict(strict=True, extra="forbid"))
class ModelParams(TypedDict, total=False):
    """Parameters of each request of a run, named as the client of `openai` names them, whichever API is asked.

    A run's take the place of its session's, name by name, and these of the engine's settings. None takes none: the
    session's does not hold for the run then, and the engine's does.
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
    """What an answer may take, in tokens, thoughts included. Sent under the name that the server has for it."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None
    """The same gives the same answers, as far as the provider can."""
    stop: Annotated[Stop, PlainValidator(_stop)] | None
    """A text, or up to 16, at which the answer ends."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
    """How much a model thinks; each model knows some of these."""
    verbosity: Literal["low", "medium", "high"] | None
    """How long answers are."""
    tool_choice: Annotated[ToolChoice, PlainValidator(_tool_choice)] | None
    """`auto`, `none`, `required`, or `{"type": "function", "function": {"name": ...}}`. What makes the model call a
    tool holds for the first step of a run; the later ones go with `auto`."""
    parallel_tool_calls: bool | None
    """Whether one answer may have several calls."""
    response_format: Annotated[Mapping[str, Any], PlainValidator(_response_format)] | None
    """`{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}`."""
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "on_demand", "performance"] | None
    """How fast, at which price; the last two are Groq's."""
    metadata: Annotated[Mapping[str, str], PlainValidator(_metadata)] | None
    """Up to 16 texts that the provider keeps with the request."""
    prompt_cache_key: _Word | None
    """Requests that share it share the provider's cache of prompts."""
    safety_identifier: _Word | None
    """Tells the provider one user from another, without saying who it is."""


PARAMS: tuple[str, ...] = tuple(ModelParams.__annotations__)
"""The names of all parameters."""

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
    "tools": "they are settings of the engine",
    "timeout": "pass timeout_s beside params",
    "extra_body": "other fields are settings of the engine: OpenAIEngine(extra=...)",
    "extra_headers": "headers are settings of the engine: OpenAIEngine(default_headers=...)",
}
"""What users of `openai` pass to a request and not here, and what to do."""


def check_params(field: str, value: object) -> FrozenDict:
    """Return parameters from outside, in one form each, with None for those that are to be as if nobody gave them.

    Raises:
        InvalidInputError: a name, a type or a value is wrong; names it.
    """
    if not isinstance(value, Mapping):
        raise InvalidInputError(field, shown(value), "must be a mapping, such as {'temperature': 0.2}")
    plain = plain_json(field, value, MAX_PARAMS_BYTES)
    try:
        checked: FrozenDict = freeze(_adapter().validate_python(plain))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        why = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if first["type"] == "extra_forbidden":
            why = _ELSEWHERE.get(name) or f"there is no such parameter; there are {', '.join(PARAMS)}"
        raise InvalidInputError(f"{field}[{shown(name)}]", shown(plain[name]), why) from None
    return checked


@functools.cache
def _adapter() -> TypeAdapter[ModelParams]:
    return TypeAdapter(ModelParams)


def merged(params: Mapping[str, Any], over: Mapping[str, Any]) -> FrozenDict:
    """Return the parameters with others over them, name by name. A name that they give None is in neither."""
    return FrozenDict({name: value for name, value in {**params, **over}.items() if value is not None})


def forces_call(tool_choice: object) -> bool:
    """Return whether a choice leaves the model no answer without a call of a tool."""
    return tool_choice is not None and tool_choice not in ("auto", "none")


def of_later_step(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a run's steps behind its first: none has to call a tool, or no run would ever end."""
    return FrozenDict({**params, "tool_choice": "auto"}) if forces_call(params.get("tool_choice")) else params
