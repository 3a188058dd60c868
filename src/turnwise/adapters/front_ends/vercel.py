"""`VercelEncoder`: a run as the UI message stream of the Vercel AI SDK, version 1, which `useChat` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from turnwise.adapters.front_ends.answers import Piece
from turnwise.adapters.front_ends.encoding import Frame, FrontEndEncoder, Json
from turnwise.memory.conversation.blocks import Citations, Document, Image, ToolResult
from turnwise.memory.conversation.events import CustomEvent, RunCancelled, RunCompleted
from turnwise.memory.conversation.runs import CUT_SHORT
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_chat import data_uri

DONE = "[DONE]"

_OF_TRACK = {"text": "text", "thought": "reasoning"}


FileUrl = Callable[[str], str]
"""Returns the address of a file's bytes, by its id."""


class VercelEncoder(FrontEndEncoder):
    """Turns the events of one run into the parts of a UI message stream.

    The message's id is the run's, so a message that was cut, resumed, or continued after an approval stays one. A call
    that waits for an approval is a `tool-approval-request`, whose id is the call's. Events that were added by
    `context.event` or `add_event` are `data-<name>` parts.

    Args:
        last_event_id: the id of the last frame that the client has.
        behind: ids of calls. The stream begins where the first of them waited; what was before is left out.
        file_url: returns where the client finds a file of the session, by its id; if omitted, such files of an answer
            are left out, since a part of a message needs an address.

    Raises:
        InvalidInputError: `last_event_id` is of no frame.
    """

    headers = {"x-vercel-ai-ui-message-stream": "v1"}  # noqa: RUF012 - never changed
    _in_step = False

    def __init__(
        self, last_event_id: str | None = None, *, behind: Iterable[str] = (), file_url: FileUrl | None = None
    ) -> None:
        super().__init__(last_event_id, behind=behind)
        self._file_url = file_url
        self._requests: set[str] = set()
        """The calls that were asked to be approved."""
        self._data: list[Json] = []
        """What of the step is neither text nor call: a step that is reset loses it."""

    def failed(self, error: Exception) -> list[Frame]:
        """Return the frames with which a stream ends that cannot be read on; the run may go on."""
        return [Frame({"type": "error", "errorText": str(error)}), Frame(DONE)]

    def _say(self, piece: Piece) -> Iterator[Json | str]:  # noqa: PLR0912 - a table of pieces
        match piece.kind:
            case "begun":
                yield {"type": "start", "messageId": piece.id}
                if piece.event is not None:
                    yield from self._step()
            case "opened" | "said" | "closed":
                yield _text(piece)
            case "reset":
                yield {"type": "reset-step"}
                yield from self._data
            case "called":
                yield {
                    "type": "tool-input-available",
                    "toolCallId": piece.id,
                    "toolName": piece.text,
                    "input": piece.input,
                }
            case "asked" if piece.wants != "result":
                self._requests.add(piece.id)
                request = {"type": "tool-approval-request", "approvalId": piece.id, "toolCallId": piece.id}
                yield {**request, "reason": piece.text} if piece.text else request
            case "approved" if piece.id in self._requests:
                if piece.block is not None:
                    new = getattr(piece.block, "input", {})
                    yield {
                        "type": "tool-input-available",
                        "toolCallId": piece.id,
                        "toolName": piece.text,
                        "input": new,
                    }
                yield {"type": "tool-approval-response", "approvalId": piece.id, "approved": True}
            case "denied" if piece.id not in self._requests:
                yield {"type": "tool-output-error", "toolCallId": piece.id, "errorText": piece.text or "rejected"}
            case "denied":
                yield {"type": "tool-approval-response", "approvalId": piece.id, "approved": False}
                yield {"type": "tool-output-denied", "toolCallId": piece.id}
            case "result":
                yield _result(piece)
            case "calls_ended":
                yield from self._step()
            case "attached" | "custom" | "step_started" | "step_ended":
                for data in _data(piece, self._file_url):
                    self._data.append(data)
                    yield data
            case "waits":
                yield from self._end("tool-calls")
            case "ended":
                yield from self._ended(piece)
            case _:
                pass

    def _step(self) -> Iterator[Json]:
        """End the step, if one has begun, and begin the next."""
        if self._in_step:
            yield {"type": "finish-step"}
        self._in_step, self._data = True, []
        yield {"type": "start-step"}

    def _end(self, reason: str, usage: Usage | None = None) -> Iterator[Json | str]:
        if self._in_step:
            yield {"type": "finish-step"}
        self._in_step = False
        finish: dict[str, Any] = {"type": "finish", "finishReason": reason}
        if usage:
            finish["messageMetadata"] = {
                "usage": {
                    "inputTokens": usage.input_tokens,
                    "outputTokens": usage.output_tokens,
                    "totalTokens": usage.input_tokens + usage.output_tokens,
                    **({"countedTokens": usage.counted_tokens} if usage.counted_tokens else {}),
                }
            }
        yield finish
        yield DONE

    def _ended(self, piece: Piece) -> Iterator[Json | str]:
        event = piece.event
        if isinstance(event, RunCompleted):
            yield from self._end(_reason(event.stop_reason), event.usage)
            return
        if self._in_step:
            yield {"type": "finish-step"}
        self._in_step = False
        reason = str(getattr(event, "why", ""))
        if isinstance(event, RunCancelled):
            yield {"type": "abort", "reason": reason}
        else:
            yield {"type": "error", "errorText": reason}
        yield DONE


def _reason(stop_reason: str | None) -> str:
    if stop_reason in CUT_SHORT:
        return "length"
    return "content-filter" if stop_reason in ("content_filter", "refusal") else "stop"


def _text(piece: Piece) -> Json:
    name = _OF_TRACK[piece.track]
    if piece.kind == "said":
        return {"type": f"{name}-delta", "id": piece.id, "delta": piece.text}
    return {"type": f"{name}-start" if piece.kind == "opened" else f"{name}-end", "id": piece.id}


def output_of(result: ToolResult) -> Any:
    """Return the result of a call as it is shown: its payload, or its text."""
    if result.blocks:
        return {"text": result.text, "blocks": [block.model_dump(exclude_none=True) for block in result.blocks]}
    if not result.is_json:
        return result.text
    try:
        return json.loads(result.text)
    except ValueError:  # the text was changed, such as by a redaction
        return result.text


def _result(piece: Piece) -> Json:
    result = piece.block
    if not isinstance(result, ToolResult):
        raise TypeError(f"call {piece.id} has no result")
    if result.is_error:
        return {"type": "tool-output-error", "toolCallId": piece.id, "errorText": result.plain}
    return {"type": "tool-output-available", "toolCallId": piece.id, "output": output_of(result)}


def _data(piece: Piece, file_url: FileUrl | None) -> Iterator[Json]:
    block, event = piece.block, piece.event
    if isinstance(event, CustomEvent):
        yield {"type": f"data-{event.name}", "id": piece.id, "data": event.data}
    elif piece.kind in ("step_started", "step_ended"):
        state = "running" if piece.kind == "step_started" else "done"
        yield {"type": "data-step", "id": piece.id, "data": {"name": piece.text, "state": state}}
    elif isinstance(block, Citations):
        yield {"type": "data-citations", "id": piece.id, "data": list(block.items)}
    elif isinstance(block, Image | Document) and (part := file_part(block, file_url)):
        yield part


def file_part(block: Image | Document, file_url: FileUrl | None = None) -> dict[str, Any] | None:
    """Return a picture or a file as a part of a message; None if it is a text only, or has no address."""
    url = data_uri(block) if block.data else file_url(block.file) if block.file and file_url else block.url
    if not url:
        return None
    media_type = block.media_type or ("image" if isinstance(block, Image) else "application/octet-stream")
    part = {"type": "file", "url": url, "mediaType": media_type}
    return {**part, "filename": block.name} if isinstance(block, Document) else part
