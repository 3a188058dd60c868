"""Models of the OpenAI Agents SDK that answer at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

from agents import Model, ModelResponse
from agents.items import TResponseOutputItem
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent

TEXT = "It is sunny."


class InstantModel(Model):
    """Calls the tool `weather` if the prompt asks for a tool, then says that it is sunny."""

    def __init__(self) -> None:
        self._calls = 0

    def _answer(self, items: Any) -> list[TResponseOutputItem]:
        last = items[-1]
        if last.get("role") == "user" and "tool" in json.dumps(last["content"]):
            self._calls += 1
            return [function_call("weather", {"city": "Oslo"}, call_id=f"c{self._calls}")]
        return [assistant_message(TEXT)]

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items = kwargs["input"] if "input" in kwargs else args[1]
        return ModelResponse(output=self._answer(items), usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        output = self._answer(kwargs["input"] if "input" in kwargs else args[1])
        if output[0].type == "message":
            place: dict[str, Any] = {"item_id": "m", "output_index": 0, "content_index": 0, "sequence_number": 0}
            kind: Any = "response.output_text.delta"
            yield ResponseTextDeltaEvent(type=kind, delta=TEXT, logprobs=[], **place)
        fixed: dict[str, Any] = {"tool_choice": "auto", "parallel_tool_calls": True, "tools": [], "object": "response"}
        response = Response(id="r", created_at=0, model="instant", output=output, status="completed", **fixed)
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=1)


class Steps(InstantModel):
    """Makes these steps after each prompt, by the conversation alone: texts, or calls as (tool, arguments)."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self._steps = steps

    def _answer(self, items: Any) -> list[TResponseOutputItem]:
        prompts = [index for index, item in enumerate(items) if item.get("role") == "user"]
        kinds = [item.get("type") for item in items[prompts[-1] :]]
        step_index = sum(pair == ("function_call_output", "function_call") for pair in pairwise(kinds)) + (
            "function_call" in kinds
        )
        step = self._steps[step_index]
        if isinstance(step, str):
            return [assistant_message(step)]
        return [
            function_call(name, arguments, call_id=f"c{len(prompts)}-{step_index}-{n}")
            for n, (name, arguments) in enumerate(step)
        ]
