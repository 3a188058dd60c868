"""Shows a response: what its request asked for, and what has become of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.http.openai.fields import metadata_of
from turnwise.http.openai.ids import conversation_id, response_id
from turnwise.http.openai.output_stream import Sent
from turnwise.http.openai.projection import Projection
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import plain_json

_ERRORS: Mapping[str | None, str] = {"refused": "invalid_prompt", "window": "invalid_prompt"}
"""OpenAI's codes of failed responses, by those of runs; `server_error` for others."""

_LAST = ("response.completed", "response.incomplete", "response.failed")

MOST_JSON = 1 << 30


class Answer:
    """A response, as of the events that its projection has.

    Args:
        session_id: the session's public id.
        model: the name of its model.
        stored: whether it can be retrieved.
        encrypted: whether reasoning is shown such that it can be sent back, also if the request did not ask for that.
    """

    def __init__(
        self,
        session_id: str,
        run: RunRecord,
        part: int,
        *,
        model: str,
        stored: bool = True,
        encrypted: bool = False,
    ) -> None:
        self.id = response_id(run.run_id, part)
        self.state = Projection(run.run_id, part, encrypted=encrypted or "openai.encrypted" in run.labels)
        self._session_id = session_id
        self._run = run
        self._model = model
        self._stored = stored

    def sent(self, sent: Sent, after: int = -1) -> tuple[str, dict[str, Any]] | None:
        """Return an event as it is sent: its name and its data; None if all of it was sent before.

        Args:
            after: the number of the last event that was sent. The last event of a response also comes to whoever has
                seen more of an answer than was stored.
        """
        is_last = sent.kind in _LAST
        rest = sent if is_last and after != sent.number else sent.after(after)
        if rest is None:
            return None
        about = {} if rest.body else {"response": self.body()}
        number = max(rest.number, after + 1) if is_last else rest.number
        return rest.kind, {"type": rest.kind, "sequence_number": number, **about, **rest.body}

    def body(self) -> dict[str, Any]:
        """Return the response."""
        state, run, labels = self.state, self._run, self._run.labels
        is_first = state.part == 0
        in_conversation = "openai.conversation" in labels
        previous = labels.get("openai.previous") if is_first else response_id(run.run_id, state.part - 1)
        status = state.status or "queued"
        background = "openai.background" in labels if is_first else bool(state.change.get("background"))
        return {
            "id": self.id,
            "object": "response",
            "created_at": int(state.created_at or run.created_at),
            "status": status,
            "background": background,
            "completed_at": int(state.completed_at) if state.completed_at and status == "completed" else None,
            "error": self._error(),
            "incomplete_details": self._incomplete(),
            "output": [item for item in state.items if item and item.get("status") != "in_progress"],
            "usage": _usage(state.usage),
            "conversation": {"id": conversation_id(self._session_id)} if in_conversation else None,
            "previous_response_id": None if in_conversation else previous,
            "metadata": metadata_of(labels) if is_first else dict(state.change.get("metadata", {})),
            "store": self._stored,
            "model": self._model,
            **_request_fields(run),
        }

    def _error(self) -> dict[str, Any] | None:
        if self.state.status != "failed":
            return None
        return {"code": _ERRORS.get(self.state.code, "server_error"), "message": self.state.why or "the run failed"}

    def _incomplete(self) -> dict[str, Any] | None:
        if self.state.status != "incomplete":
            return None
        is_filtered = self.state.stop_reason == "content_filter"
        return {"reason": "content_filter" if is_filtered else "max_output_tokens"}


def _request_fields(run: RunRecord) -> dict[str, Any]:
    """Return what the request asked for."""
    params: dict[str, Any] = plain_json("params", dict(run.params), MOST_JSON)
    return {
        "instructions": run.instructions,
        "tools": [_tool(name, plain_json("tools", tool, MOST_JSON)) for name, tool in run.tools.items()],
        "tool_choice": _tool_choice(params.get("tool_choice", "auto")),
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
        "temperature": params.get("temperature"),
        "top_p": params.get("top_p"),
        "max_output_tokens": params.get("max_output_tokens"),
        "reasoning": {"effort": params.get("reasoning_effort"), "summary": None},
        "text": {"format": _format(params.get("response_format")), "verbosity": params.get("verbosity", "medium")},
        "truncation": "auto",
        "service_tier": params.get("service_tier"),
        "prompt_cache_key": params.get("prompt_cache_key"),
        "safety_identifier": params.get("safety_identifier"),
        "user": run.labels.get("openai.user"),
    }


def _tool(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    parts = {"description": tool["description"] or None, "parameters": tool["parameters"]}
    return {"type": "function", "name": name, **parts, "strict": True}


def _tool_choice(choice: Any) -> Any:
    return {"type": "function", **choice["function"]} if isinstance(choice, dict) else choice


def _format(response_format: Any) -> dict[str, Any]:
    if response_format is None:
        return {"type": "text"}
    return {"type": response_format["type"], **response_format.get("json_schema", {})}


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
