"""`ResponsesAnswer`, with events of the Responses API that the local provider does not send."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from openai.types.responses import ResponseStreamEvent

from turnwise.actors.inference.openai.fields import BrokenOffError
from turnwise.actors.inference.openai.responses_answer import ResponsesAnswer
from turnwise.memory.conversation.blocks import Thinking
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.providers.openai_responses import pack_reasoning


def event(kind: str, **values: Any) -> Any:
    """Return an event of the Responses API, checked with the client library."""
    fields = {"type": kind, "sequence_number": 0, **values}
    pydantic.TypeAdapter(ResponseStreamEvent).validate_python(fields)
    return fields


def response(**values: Any) -> dict[str, Any]:
    fields = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": [], "tools": []}
    return {**fields, "parallel_tool_calls": True, "tool_choice": "auto", **values}


def thought(text: str, part: int) -> Any:
    place = {"item_id": "rs", "output_index": 0, "summary_index": part}
    return event("response.reasoning_summary_text.delta", **place, delta=text)


def test_parts_of_a_thought_are_separated_by_blank_lines() -> None:
    growing = ResponsesAnswer()
    parts = [growing.add(thought(text, part)) for text, part in (("Ra", 0), ("in?", 0), ("No.", 1))]
    assert parts == [[Thinking(text=text)] for text in ("Ra", "in?", "\n\nNo.")]
    assert growing.blocks() == [Thinking(text="Rain?\n\nNo.")]
    summary = [{"type": "summary_text", "text": text} for text in ("Rain?", "No!")]
    item = {"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": "xyz"}
    assert growing.add(event("response.output_item.done", output_index=0, item=item)) == []
    signature = pack_reasoning("rs", "xyz", parts=(5, 3))
    assert growing.blocks() == [Thinking(text="Rain?\n\nNo!", signature=signature)]


def test_reasoning_that_is_not_encrypted_has_no_signature() -> None:
    growing = ResponsesAnswer()
    growing.add(event("response.reasoning_text.delta", item_id="rs", output_index=0, content_index=0, delta="Rain?"))
    item = {"type": "reasoning", "id": "rs", "summary": []}
    growing.add(event("response.output_item.done", output_index=0, item=item))
    assert growing.blocks() == [Thinking(text="Rain?")]


def test_reasoning_that_was_cut_off_has_no_signature() -> None:
    growing = ResponsesAnswer()
    item = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "half"}
    growing.add(event("response.output_item.added", output_index=0, item=item))
    growing.add(thought("Rain?", 0))
    assert growing.blocks() == [Thinking(text="Rain?")]


def test_cached_tokens_are_counted() -> None:
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }
    growing = ResponsesAnswer()
    growing.add(event("response.completed", response=response(status="completed", usage=usage)))
    assert growing.usage == Usage(input_tokens=7, output_tokens=5, cached_tokens=4, reasoning_tokens=2, calls=1)
    assert growing.stop_reason == "stop"


def test_a_filtered_answer_has_the_stop_reason() -> None:
    growing = ResponsesAnswer()
    details = {"reason": "content_filter"}
    growing.add(event("response.incomplete", response=response(status="incomplete", incomplete_details=details)))
    assert growing.stop_reason == "content_filter"
    assert not growing.is_cut


def test_a_failed_response_has_the_providers_error() -> None:
    error = {"code": "server_error", "message": "It broke."}
    with pytest.raises(BrokenOffError) as caught:
        ResponsesAnswer().add(event("response.failed", response=response(status="failed", error=error)))
    assert (caught.value.message, caught.value.code) == ("It broke.", "server_error")
