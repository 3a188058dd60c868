"""Writes requests: prompts and options of runs as the bodies of routes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.actors.client.shared.run_options import RunOptions, checked_options, with_records
from turnwise.client.shared.answers import given
from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.blocks import Block, encode
from turnwise.memory.conversation.prompts import Prompt, plain_prompts
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.limits import MAX_MESSAGES, check_count

if TYPE_CHECKING:
    from turnwise.actors.session.runs.admission import StartOptions

_PLAIN = ("parent", "timeout_s", "memory", "model", "instructions", "turn_id", "debounce_s")
"""Options of a run that are in its body as they are."""

FORMATS = ("openai_chat", "openai_responses", "anthropic")
"""The formats of messages that go over HTTP."""


def prompts_body(session_id: str, prompts: Sequence[Prompt]) -> list[Any]:
    """Return prompts as JSON.

    Raises:
        TooManyError, InvalidPromptError: see `plain_prompts`.
    """
    return [
        block_body(prompt) if isinstance(prompt, Block) else prompt for prompt in plain_prompts(session_id, prompts)
    ]


def block_body(block: Block) -> dict[str, Any]:
    """Return a block as JSON."""
    body: dict[str, Any] = json.loads(encode(block))
    return body


def run_body(
    session_id: str, prompts: Sequence[Prompt], options: RunOptions, *, names: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the headers by which a run is started.

    A run always has an idempotency key, so that a start whose answer was lost can be repeated.

    Args:
        names: options of a run that are in the body besides, even if they have their defaults.

    Raises:
        InvalidInputError, TypeError: an option is wrong, or does not exist.
    """
    settings = with_records(checked_options(options), options)
    body = options_body(settings, options)
    if prompts:
        body["prompt"] = prompts_body(session_id, prompts)
    body |= {name: settings[name] for name in names}  # type: ignore[literal-required]
    headers = {"Idempotency-Key": settings["idempotency_key"] or new_id()}
    return body, headers | traced(settings)


def options_body(settings: StartOptions, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that are set, as JSON."""
    values: Any = settings
    body = given(**{name: values.get(name) for name in _PLAIN})
    for name in ("labels", "params"):
        if values.get(name):
            body[name] = dict(values[name])
    if output := values["output"]:
        body |= {"output": output["schema"], "output_retries": options.get("output_retries", 2)}
    if values["tools"]:
        body["tools"] = [{"name": name, **tool} for name, tool in values["tools"].items()]
    if values["overflow"] is not None:
        body["overflow"] = dict(values["overflow"])
    return body


def traced(settings: Any) -> dict[str, str]:
    """Return the headers of the caller's trace."""
    return dict(settings.get("trace") or {})


def messages_body(messages: Any, format: str | None) -> list[Any]:
    """Return messages from elsewhere as JSON: dicts, or objects of a provider's client.

    Raises:
        TooManyError: there are too many.
        InvalidInputError: they are no messages, or in a format that does not go over HTTP.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInputError("format", shown(format), f"over HTTP, pass one of {', '.join(FORMATS)}")
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidInputError("messages", shown(messages), "must be a list of messages")
    check_count("messages", len(messages), "MAX_MESSAGES", MAX_MESSAGES)
    return [_message_body(index, message) for index, message in enumerate(messages)]


def _message_body(index: int, message: Any) -> Any:
    dump = getattr(message, "model_dump", None)
    plain = dump(mode="json", exclude_none=True) if callable(dump) else message
    try:
        return json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"messages[{index}]", shown(message), f"it is no JSON: {error}") from None
