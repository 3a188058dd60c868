"""`AgUiEncoder`: a run as events of the Agent User Interaction protocol, version 1.0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnwise.adapters.front_ends.answers import Piece
from turnwise.adapters.front_ends.encoding import Frame, FrontEndEncoder, Json
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.blocks import ToolResult
from turnwise.memory.conversation.calls.tool_calls import Wants
from turnwise.memory.conversation.events import CustomEvent, RunCancelled, RunCompleted, RunFailed
from turnwise.memory.conversation.usage import Usage

VERSION = "1.0"

STATE = "state"
"""The name of the events that are state snapshots."""

DECISION: Json = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "editedArgs": {"type": "object"},
    },
    "required": ["approved"],
}
"""What an interrupt for an approval is to be answered with."""


class AgUiEncoder(FrontEndEncoder):
    """Turns the events of one run into events of AG-UI.

    Each text and each thought is a message of its own, whose id begins with that of turnwise's run and `-`. Calls that
    wait for an approval end the protocol's run with an interrupt each, whose id is `{run_id}.{call_id}`; calls whose
    results come from the client end it as its pending calls. The next run of the protocol goes on with the same run of
    turnwise. Events that were added by `context.event` or `add_event` are `CUSTOM`, and those named `state` are state
    snapshots. A message that was taken back, as its model call failed, is named by a custom event `turnwise.void`.

    Args:
        thread_id: the conversation's id, as the client knows it.
        run_id: the id of the protocol's run, which the client has made; the run's own if omitted.
        last_event_id: the id of the last frame that the client has.
        behind: ids of calls. The stream begins where the first of them waited; what was before is left out.
        had: ids of calls whose results the client has; they are not told again. It has those that it was asked for, if
            their calls are in `behind`.

    Raises:
        InvalidInputError: `last_event_id` is of no frame.
    """

    def __init__(
        self,
        thread_id: str,
        run_id: str | None = None,
        last_event_id: str | None = None,
        *,
        behind: Iterable[str] = (),
        had: Iterable[str] = (),
    ) -> None:
        super().__init__(last_event_id, behind=behind)
        self._client_results = frozenset(had)
        self._thread_id = thread_id
        self._run_id = run_id
        self._message: str | None = None
        """The message of the answer that its calls belong to."""
        self._streamed: list[str] = []
        """The messages of the answer that is streamed."""
        self._steps: dict[str, str] = {}
        """The names of the steps that have not ended, by their ids."""
        self._waits: dict[str, tuple[Wants, str, str]] = {}
        """What the calls without a result wait for: what, why, and their names."""
        self._names: dict[str, str] = {}

    def failed(self, error: Exception) -> list[Frame]:
        """Return the frames with which a stream ends that cannot be read on; the run may go on."""
        code = {"code": type(error).__name__} if isinstance(error, TurnwiseError) else {}
        return [Frame({"type": "RUN_ERROR", "message": str(error), **code})]

    def _say(self, piece: Piece) -> Iterator[Json]:  # noqa: PLR0912 - a table of pieces
        match piece.kind:
            case "begun":
                self._run_id = self._run_id or piece.id
                yield {"type": "RUN_STARTED", **self._ids(), "protocolVersion": VERSION}
            case "opened" | "said" | "closed" if piece.track == "thought":
                yield from self._thought(piece)
            case "opened" | "said" | "closed":
                yield from self._text(piece)
            case "reset":
                void, self._streamed, self._message = self._streamed, [], None
                yield {"type": "CUSTOM", "name": "turnwise.void", "value": {"messageIds": void}}
            case "called":
                yield from self._called(piece)
            case "asked":
                self._waits[piece.id] = piece.wants or "approval", piece.text, self._names.get(piece.id, "")
            case "approved":
                self._waits.pop(piece.id, None)
            case "denied" | "result":
                self._waits.pop(piece.id, None)
                if piece.id not in self._answered:
                    yield _result(piece)
            case "calls_ended":
                self._message, self._streamed = None, []
            case "attached" if piece.block is not None:
                yield {"type": "CUSTOM", "name": "attachment", "value": piece.block.model_dump(exclude_none=True)}
            case "custom" if isinstance(piece.event, CustomEvent):
                yield _custom(piece.event)
            case "step_started":
                taken = piece.text in self._steps.values()
                self._steps[piece.id] = f"{piece.text} {piece.id}" if taken else piece.text
                yield {"type": "STEP_STARTED", "stepName": self._steps[piece.id]}
            case "step_ended" if piece.id in self._steps:
                yield {"type": "STEP_FINISHED", "stepName": self._steps.pop(piece.id)}
            case "waits":
                yield from self._end_steps()
                yield {"type": "RUN_FINISHED", **self._ids(), "outcome": self._waiting()}
            case "ended":
                yield from self._end_steps()
                yield self._ended(piece)
            case _:
                pass

    def _ids(self) -> dict[str, Any]:
        return {"threadId": self._thread_id, "runId": self._run_id}

    def _text(self, piece: Piece) -> Iterator[Json]:
        if piece.kind == "opened":
            self._message = piece.id
            self._streamed.append(piece.id)
            yield {"type": "TEXT_MESSAGE_START", "messageId": piece.id, "role": "assistant"}
        elif piece.kind == "said":
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": piece.id, "delta": piece.text}
        else:
            yield {"type": "TEXT_MESSAGE_END", "messageId": piece.id}

    def _thought(self, piece: Piece) -> Iterator[Json]:
        if piece.kind == "opened":
            self._streamed.append(piece.id)
            yield {"type": "REASONING_START", "messageId": piece.id}
            yield {"type": "REASONING_MESSAGE_START", "messageId": piece.id, "role": "reasoning"}
        elif piece.kind == "said":
            yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": piece.id, "delta": piece.text}
        else:
            yield {"type": "REASONING_MESSAGE_END", "messageId": piece.id}
            yield {"type": "REASONING_END", "messageId": piece.id}

    def _called(self, piece: Piece) -> Iterator[Json]:
        self._names[piece.id] = piece.text
        self._message = self._message or f"{self._answers.run_id}-{piece.id}-calls"
        call = {"toolCallId": piece.id}
        yield {"type": "TOOL_CALL_START", **call, "toolCallName": piece.text, "parentMessageId": self._message}
        yield {"type": "TOOL_CALL_ARGS", **call, "delta": json.dumps(piece.input, separators=(",", ":"))}
        yield {"type": "TOOL_CALL_END", **call}

    def _end_steps(self) -> Iterator[Json]:
        for name in reversed(self._steps.values()):
            yield {"type": "STEP_FINISHED", "stepName": name}
        self._steps = {}

    def _waiting(self) -> Json:
        interrupts = [
            {
                "id": f"{self._answers.run_id}.{call_id}",
                "reason": "tool_call" if wants == "approval" else wants,
                "message": reason or f"Approve the call of {name}?",
                "toolCallId": call_id,
                "responseSchema": DECISION,
            }
            for call_id, (wants, reason, name) in self._waits.items()
            if wants != "result"
        ]
        if interrupts:
            return {"type": "interrupt", "interrupts": interrupts}
        return {"type": "success", "pendingToolCallIds": list(self._waits)}

    def _ended(self, piece: Piece) -> Json:
        event = piece.event
        if isinstance(event, RunCompleted):
            usage = {"usage": [_usage(event.usage)]} if event.usage else {}
            return {"type": "RUN_FINISHED", **self._ids(), "outcome": {"type": "success"}, **usage}
        if isinstance(event, RunCancelled):
            return {"type": "RUN_FINISHED", **self._ids(), "outcome": {"type": "cancelled"}}
        code = event.code or "failed" if isinstance(event, RunFailed) else "interrupted"
        return {"type": "RUN_ERROR", "message": str(getattr(event, "why", "")), "code": code}


def _custom(event: CustomEvent) -> Json:
    if event.name == STATE:
        return {"type": "STATE_SNAPSHOT", "snapshot": event.data}
    return {"type": "CUSTOM", "name": event.name, "value": event.data}


def _result(piece: Piece) -> Json:
    """Return the result of a call; of a call that was rejected, what the model is told."""
    result = piece.block if isinstance(piece.block, ToolResult) else None
    event = {"type": "TOOL_CALL_RESULT", "messageId": f"{piece.id}-result", "toolCallId": piece.id, "role": "tool"}
    event |= {"content": result.plain if result else piece.text}
    return {**event, "metadata": {"isError": True}} if result is None or result.is_error else event


def _usage(usage: Usage) -> Mapping[str, int]:
    tokens = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
    }
    tokens |= {"reasoningTokens": usage.reasoning_tokens} if usage.reasoning_tokens else {}
    return tokens | ({"cachedInputTokens": usage.cached_tokens} if usage.cached_tokens else {})
