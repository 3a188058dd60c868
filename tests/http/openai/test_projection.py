"""A response's events have numbers that follow from what is stored, so a stream can be cut anywhere."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from scale import share
from turnwise.http.openai.answers import Answer
from turnwise.http.openai.items import output_items
from turnwise.memory.conversation.blocks import Block, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    CallDecided,
    ModelCallEnded,
    ModelCallStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import FrozenDict

RUN = "0" * 24

EVENT, ITEM = TypeAdapter(ResponseStreamEvent), TypeAdapter(ResponseOutputItem)

LOOK, ASK, PAY = (ToolUse(call_id=name, name=name, input=FrozenDict({"n": 1})) for name in ("look", "ask", "pay"))


def record() -> RunRecord:
    return RunRecord(run_id=RUN, session_id="s", turn_index=0, state="running", first_seq=1, created_at=5.0)


class Log:
    """The events of a run, with the deltas that only a live reader gets."""

    def __init__(self, dice: random.Random) -> None:
        self.events: list[AnyEvent] = []
        self.output: list[Block] = []
        self._dice = dice
        self.add(RunStarted)

    def add(self, kind: Any, **values: Any) -> None:
        about = {"session_id": "s", "seq": len(self.events) + 1, "at": 5.0, "run_id": RUN, "turn_index": 0}
        self.events.append(kind(**about, **values))

    def stream(self, thoughts: Sequence[str] = (), text: str = "") -> None:
        """Add the deltas of an answer, cut anywhere."""
        self.add(ModelCallStarted, call=0)
        for index, thought in enumerate(thoughts):
            for piece in self.pieces(thought):
                self.add(ThinkingDelta, text=piece, index=index)
            self.add(ThinkingDelta, text="", index=index, final=True)
        for piece in self.pieces(text):
            self.add(TextDelta, text=piece, index=len(thoughts))

    def pieces(self, text: str) -> Iterable[str]:
        while text:
            size = self._dice.randint(1, 7)
            yield text[:size]
            text = text[size:]

    def answer(
        self, *uses: ToolUse, thoughts: Sequence[str] = (), text: str = "", kind: Any = None, **ending: Any
    ) -> None:
        """Add an answer: streamed, then as it is stored."""
        self.stream(thoughts, text)
        blocks: list[Block] = [Thinking(text=thought) for thought in thoughts]
        blocks += [Text(text=text)] if text else []
        blocks += uses
        self.output += blocks
        call = {} if kind else {"call": 0, "seconds": 0.0, "usage": Usage(input_tokens=1, output_tokens=2)}
        self.add(kind or ModelCallEnded, blocks=tuple(blocks), **call, **ending)

    def result(self, use: ToolUse, text: str = "seen", **values: Any) -> None:
        self.add(ToolStarted, call_id=use.call_id, name=use.name)
        tool_result = ToolResult(call_id=use.call_id, text=text, **values)
        self.output.append(tool_result)
        self.add(ToolEnded, call_id=use.call_id, name=use.name, blocks=(tool_result,), **values)

    def provided(self, use: ToolUse) -> None:
        tool_result = ToolResult(call_id=use.call_id, text="given")
        self.output.append(tool_result)
        self.add(CallDecided, call_id=use.call_id, verdict="provided", blocks=(tool_result,))


def stored(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    return [event for event in events if not event.live]


@functools.cache
def check(data: str) -> None:
    """Check an event by the client's own models, which is slow."""
    EVENT.validate_json(data, strict=True)


def sent(events: Sequence[AnyEvent], part: int = 0, after: int = -1) -> list[dict[str, Any]]:
    """Return the events of a response behind a number, checked."""
    answer = Answer("s", record(), part, model="local")
    server_events = [
        server_event
        for event in events
        for sent_event in answer.state.add(event)
        if (server_event := answer.sent(sent_event, after))
    ]
    for _, data in server_events:
        check(json.dumps(data))
    return [data for _, data in server_events]


def texts_of(events: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return what the deltas say, by item and kind."""
    texts: dict[tuple[str, str], str] = {}
    for event in events:
        if "delta" in event:
            key = event["item_id"], event["type"]
            texts[key] = texts.get(key, "") + event["delta"]
    return texts


def usual(seed: int) -> Log:
    """Return a run with thoughts and texts, calls of the service's tools and of the client's, in two parts."""
    log = Log(random.Random(seed))
    log.answer(LOOK, thoughts=["First look. ", "Then tell."], text="I look.")
    log.result(LOOK)
    log.answer(ASK, PAY, text="And I ask you.", thoughts=["Who knows?"])
    log.add(ApprovalRequested, call_id="ask", name="ask", input=ASK.input, wants="result")
    log.result(PAY)
    log.provided(ASK)
    log.add(RunResumed, why="all decisions have been made")
    usage = Usage(input_tokens=9, output_tokens=9)
    log.answer(thoughts=["Aha. "], text="That is all that I know.", kind=RunCompleted, stop_reason="stop", usage=usage)
    return log


@pytest.mark.parametrize("part", [0, 1])
def test_a_stream_that_was_cut_goes_on_where_it_was_cut(part: int) -> None:
    for seed in range(share(100)):
        log = usual(seed)
        live = sent(log.events, part)
        for cut, last in enumerate(live):
            for events in (log.events, stored(log.events)):
                both = [*live[: cut + 1], *sent(events, part, last["sequence_number"])]
                assert texts_of(both) == texts_of(live), (seed, cut)
                assert [event for event in both if "delta" not in event] == [
                    event for event in live if "delta" not in event
                ]
                numbers = [event["sequence_number"] for event in both]
                assert numbers == sorted(set(numbers)), (seed, cut)


def test_a_response_ends_where_it_asks_and_the_next_one_continues() -> None:
    log = usual(0)
    first, second = sent(log.events, 0), sent(log.events, 1)
    assert [first[-1]["type"], second[-1]["type"]] == ["response.completed"] * 2
    first_response, two = first[-1]["response"], second[-1]["response"]
    kinds = ["reasoning", "message", "mcp_call", "reasoning", "message", "function_call", "mcp_call"]
    assert [item["type"] for item in first_response["output"]] == kinds
    assert [item["type"] for item in two["output"]] == ["reasoning", "message"]
    assert first_response["output"][-1]["output"] == "seen" and two["previous_response_id"] == first_response["id"]
    assert (first_response["usage"]["total_tokens"], two["usage"]["total_tokens"]) == (6, 12)
    calls = FrozenDict({"ask": {"name": "ask", "wants": "result", "verdict": "provided"}})
    every = output_items(RUN, log.output, calls)  # type: ignore[arg-type]
    for item in (item for _, item in every if item["type"] != "function_call_output"):
        ITEM.validate_json(json.dumps(item), strict=True)
    assert [item for part, item in every if part == 0] == first_response["output"]
    assert [item for part, item in every if part == 1][1:] == two["output"]
    assert sent(log.events, 2) == []


def test_an_approved_call_is_an_item_of_the_next_response() -> None:
    log = Log(random.Random(1))
    log.answer(PAY, text="May I?")
    log.add(ApprovalRequested, call_id="pay", name="pay", input=PAY.input, wants="approval")
    first = sent(log.events)
    assert [item["type"] for item in first[-1]["response"]["output"]] == ["message", "mcp_approval_request"]
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    log.result(PAY, "no money", is_error=True)
    log.answer(text="I could not pay.", kind=RunCompleted, stop_reason="length")
    second = sent(log.events, 1)
    output = second[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["mcp_call", "message"] and output[0]["status"] == "failed"
    assert output[0]["approval_request_id"] == first[-1]["response"]["output"][1]["id"]
    assert second[-1]["response"]["status"] == "incomplete"
    assert second[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_approved_call_that_is_refused_before_it_begins_has_its_result_in_the_next_response() -> None:
    log = Log(random.Random(4))
    log.answer(PAY)
    log.add(ApprovalRequested, call_id="pay", name="pay", input=PAY.input, wants="approval")
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    refusal = ToolResult(call_id="pay", text="there is no tool 'pay'", is_error=True)
    log.add(ToolEnded, call_id="pay", name="pay", is_error=True, blocks=(refusal,))
    log.answer(text="I could not pay.", kind=RunCompleted, stop_reason="stop")
    output = sent(log.events, 1)[-1]["response"]["output"]
    assert [(item["type"], item["status"]) for item in output] == [("mcp_call", "failed"), ("message", "completed")]


def test_a_call_that_another_process_makes_again_is_one_item() -> None:
    log = Log(random.Random(5))
    log.answer(PAY)
    log.add(ApprovalRequested, call_id="pay", name="pay", input=PAY.input, wants="approval")
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    log.add(ToolStarted, call_id="pay", name="pay")
    log.add(RunResumed, why="another process has taken over the run")
    log.result(PAY)
    log.answer(text="Paid.", kind=RunCompleted, stop_reason="stop")
    events = sent(log.events, 1)
    added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
    assert added == ["mcp_call", "message"]
    output = events[-1]["response"]["output"]
    assert [(item["type"], item["status"]) for item in output] == [("mcp_call", "completed"), ("message", "completed")]


def test_a_call_without_a_result_is_incomplete_at_an_early_end() -> None:
    log = Log(random.Random(6))
    log.answer(PAY)
    log.add(ApprovalRequested, call_id="pay", name="pay", input=PAY.input, wants="approval")
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    log.add(ToolStarted, call_id="pay", name="pay")
    log.add(RunCancelled, why="enough")
    output = sent(log.events, 1)[-1]["response"]["output"]
    assert [(item["type"], item["status"]) for item in output] == [("mcp_call", "incomplete")]


def test_text_of_a_lost_process_is_incomplete_and_numbers_keep_rising() -> None:
    log = Log(random.Random(2))
    log.stream(["Let me think. "], "This will be lo")
    log.add(RunResumed, why="another process has taken over the run")
    log.answer(text="Short.", kind=RunCompleted, stop_reason="stop")
    live = sent(log.events)
    numbers = [event["sequence_number"] for event in live]
    assert numbers == sorted(set(numbers))
    cut = next(index for index, event in enumerate(live) if event.get("item", {}).get("status") == "incomplete")
    rest = sent(stored(log.events), after=numbers[cut])
    assert texts_of(rest) == {(live[-1]["response"]["output"][-1]["id"], "response.output_text.delta"): "Short."}
    assert [item["content"][0]["text"] for item in live[-1]["response"]["output"] if item["type"] == "message"] == [
        "Short."
    ]


@pytest.mark.parametrize(
    ("kind", "ending", "status", "name"),
    [
        (RunCancelled, {"why": "enough"}, "cancelled", "response.incomplete"),
        (RunFailed, {"why": "broken", "code": "refused"}, "failed", "response.failed"),
    ],
)
def test_a_response_that_ends_early_says_so_to_all_readers(kind: Any, ending: Any, status: str, name: str) -> None:
    log = Log(random.Random(3))
    log.stream(text="a text that is not stored")
    log.add(kind, **ending)
    last = sent(stored(log.events), after=20)
    assert [(event["type"], event["sequence_number"]) for event in last] == [(name, 21)]
    assert last[0]["response"]["status"] == status
    assert (last[0]["response"]["error"] or {}).get("code") == ("invalid_prompt" if status == "failed" else None)
