"""The streams of front ends: what is opened is closed, and a stream that was cut goes on right there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter
from test_projection import ASK, LOOK, PAY, RUN, Log

from frameworks.front_end_readers import AgUiThread, UiMessage, plain
from scale import share
from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.shared.event_page import EventPage
from turnwise.adapters import AgUiEncoder, Frame, FrontEndEncoder, VercelEncoder, front_end_stream
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.blocks import Citations, Document, Image, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import (
    AnyEvent,
    ApprovalRequested,
    CallDecided,
    CustomEvent,
    ModelCallEnded,
    ModelCallStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunQueued,
    RunResumed,
    StepEnded,
    StepStarted,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from turnwise.memory.conversation.output_type import ANSWER_TOOL
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.values.frozen_json import FrozenDict

EVENT: TypeAdapter[Any] = TypeAdapter(AgUiEvent)

ENCODERS: dict[str, Callable[..., FrontEndEncoder]] = {
    "vercel": VercelEncoder,
    "ag_ui": lambda *args, **options: AgUiEncoder("thread", "their-run", *args, **options),
}

ENDS: list[tuple[Any, dict[str, Any]]] = [
    (RunCompleted, {"stop_reason": "stop", "usage": Usage(input_tokens=3, output_tokens=2)}),
    (RunCompleted, {"stop_reason": "length"}),
    (RunCancelled, {"why": "enough"}),
    (RunFailed, {"why": "broken", "code": "refused"}),
    (RunInterrupted, {"why": "its process was lost"}),
]


def random_run(seed: int) -> Log:
    """Return a run of answers, calls, decisions, events beside them, model calls that fail, and processes lost."""
    dice = random.Random(seed)
    log = Log(dice)
    for number in range(dice.randint(0, 3)):
        _loses(log, dice)
        uses = [
            ToolUse(call_id=f"c{number}.{place}", name=f"tool{place}", input=FrozenDict({"n": place}))
            for place in range(dice.randint(1, 3))
        ]
        log.add(ModelCallEnded, call=0, seconds=0.0, blocks=(*_speaks(log, dice), *uses))
        wants = {use.call_id: dice.choice(("approval", "result")) for use in uses if dice.random() < 0.4}
        waiting_uses = [use for use in uses if use.call_id in wants]
        for use in waiting_uses:
            log.add(ApprovalRequested, call_id=use.call_id, name=use.name, input=use.input, wants=wants[use.call_id])
        for use in uses:
            if use not in waiting_uses:
                log.result(use, _text(dice) or "seen", is_error=dice.random() < 0.2)
        for use in dice.sample(waiting_uses, len(waiting_uses)):
            _decide(log, dice, use, wants[use.call_id])
        if waiting_uses:
            log.add(RunResumed, why="all decisions have been made")
        if dice.random() < 0.3:
            log.add(StepStarted, step=f"s{number}", name="search")
            log.add(CustomEvent, name=dice.choice(("progress", "state")), data=FrozenDict({"done": number}))
            log.add(StepEnded, step=f"s{number}", name="search")
    kind, values = dice.choice(ENDS)
    if kind is RunCompleted:
        _loses(log, dice)
    log.add(kind, blocks=tuple(_speaks(log, dice)), **values)
    return log


def _loses(log: Log, dice: random.Random) -> None:
    """Stream what becomes void, now and then."""
    if dice.random() < 0.25:
        _speaks(log, dice)
        if dice.random() < 0.5:
            log.add(RunResumed, why="another process has taken over the run")


def _speaks(log: Log, dice: random.Random) -> list[Text | Thinking]:
    """Stream texts and thoughts in any order, each cut anywhere; return them as they are stored."""
    log.add(ModelCallStarted, call=0)
    blocks: list[Text | Thinking] = []
    for _ in range(dice.randint(0, 4)):
        is_text = dice.random() < 0.6
        if blocks and is_text and isinstance(blocks[-1], Text):
            continue  # it would be the same part
        text = _text(dice) or "x"
        blocks.append(Text(text=text) if is_text else Thinking(text=text, signature="s"))
    for index, block in enumerate(blocks):
        kind = TextDelta if isinstance(block, Text) else ThinkingDelta
        pieces = list(log.pieces(block.text))
        for number, piece in enumerate(pieces):
            log.add(kind, text=piece, index=index, final=isinstance(block, Thinking) and number == len(pieces) - 1)
        if isinstance(block, Text) and dice.random() < 0.5:
            log.add(kind, text="", index=index, final=True)
    return blocks


def _decide(log: Log, dice: random.Random, use: ToolUse, wants: str) -> None:
    verdict = dice.choice(("rejected", "approved" if wants == "approval" else "provided"))
    result = ToolResult(call_id=use.call_id, text=f"{verdict} it", is_error=verdict == "rejected")
    log.add(CallDecided, call_id=use.call_id, verdict=verdict, blocks=() if verdict == "approved" else (result,))
    if verdict == "approved":
        log.result(use)


def _text(dice: random.Random) -> str:
    return "".join(dice.choices("abc défg\n漢😀", k=dice.choice((0, 1, 12, 40))))


def stored(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    return [event for event in events if not event.live]


def encoded(encoder: FrontEndEncoder, events: Sequence[AnyEvent]) -> list[Frame]:
    return [frame for event in events for frame in encoder.add(event)]


def read(name: str, frames: Sequence[Frame]) -> Any:
    """Return what a client has that has read these frames, one after another."""
    reader = UiMessage() if name == "vercel" else AgUiThread()
    for data in plain(frames):
        reader.feed(data)
    return reader


def texts_of(name: str, frames: Sequence[Frame]) -> Any:
    """Return what a client shows, wherever its deltas were cut. Ids of texts that were said again are new."""
    reader = read(name, frames)
    if isinstance(reader, UiMessage):
        return reader.parts, reader.finish, reader.error, reader.ended
    customs = [custom for custom in reader.customs if custom[0] != "turnwise.void"]
    messages = [json.dumps({**message, "id": ""}, sort_keys=True) for message in reader.messages.values()]
    return sorted(messages), reader.finished, customs, reader.states


def others(frames: Sequence[Frame]) -> list[str]:
    """Return all frames but deltas, sorted: texts have places of their own."""
    return sorted(json.dumps(data) for data in plain(frames) if "delta" not in data or "toolCallId" in data)


SEEDS = range(share(600))


@pytest.mark.parametrize("name", ENCODERS)
def test_each_opened_part_is_closed_in_live_and_stored_streams(name: str) -> None:
    for seed in SEEDS:
        log = random_run(seed)
        for events in (log.events, stored(log.events)):
            encoder = ENCODERS[name]()
            frames = encoded(encoder, events)
            reader = read(name, frames)
            assert encoder.is_done and not encoder.waiting
            assert len({frame.id for frame in frames}) == len(frames)
            if isinstance(reader, UiMessage):
                assert reader.id == RUN and reader.ended == 1
            else:
                assert len(reader.finished) == 1


def test_events_of_ag_ui_are_those_of_the_protocol() -> None:
    for seed in range(15):
        for data in plain(encoded(AgUiEncoder("thread"), random_run(seed).events)):
            event_of_protocol = EVENT.validate_python(data)
            assert event_of_protocol.model_extra == {}, data
            assert json.loads(event_of_protocol.model_dump_json(by_alias=True)) == data


@pytest.mark.parametrize("name", ENCODERS)
def test_a_stream_that_was_cut_goes_on_where_it_was_cut(name: str) -> None:
    for seed in SEEDS:
        log, dice = random_run(seed), random.Random(seed)
        live = encoded(ENCODERS[name](), log.events)
        whole, frames, rests, has_void = texts_of(name, live), plain(live), others(live), _has_void(log)
        for cut in dice.sample(range(len(live)), min(len(live), 12)):
            had = live[: cut + 1]
            rest = encoded(ENCODERS[name](had[-1].id), log.events)
            assert plain([*had, *rest]) == frames, "the same frames while the deltas are there"
            again = encoded(ENCODERS[name](had[-1].id), stored(log.events))
            assert texts_of(name, [*had, *again]) == whole, (seed, cut)
            if not has_void:
                assert others([*had, *again]) == rests, (seed, cut)
            if again:  # it is cut once more
                then = dice.randrange(len(again))
                third = encoded(ENCODERS[name](again[then].id), stored(log.events))
                assert plain([*again[: then + 1], *third]) == plain(again), (seed, cut, then)


def _has_void(log: Log) -> bool:
    """Return whether something was streamed that is not stored."""
    return "reset-step" in str(plain(encoded(VercelEncoder(), log.events)))


@pytest.mark.parametrize("name", ENCODERS)
def test_a_part_that_an_ended_run_dropped_is_closed_for_its_readers(name: str) -> None:
    log = Log(random.Random(1))
    log.stream(["a thought"], "a text that is not kept")
    log.add(RunFailed, why="broken")
    live = encoded(ENCODERS[name](), log.events)
    for cut, frame in enumerate(live):
        rest = encoded(ENCODERS[name](frame.id), stored(log.events))
        read(name, [*live[: cut + 1], *rest])
        assert plain(rest)[-1:] == plain(live)[-1:] or not rest


@pytest.mark.parametrize("name", ENCODERS)
def test_a_stream_ends_at_waiting_calls_and_the_next_one_continues(name: str) -> None:
    log = Log(random.Random(0))
    log.answer(LOOK, thoughts=["First look."], text="I look.")
    log.result(LOOK)
    log.answer(ASK, PAY, text="And I ask you.")
    log.add(ApprovalRequested, call_id="ask", name="ask", input=ASK.input, wants="result")
    log.add(ApprovalRequested, call_id="pay", name="pay", input=PAY.input, wants="approval", why="over 100 euros")
    first = ENCODERS[name]()
    frames = encoded(first, log.events)
    assert dict(first.waiting) == {"ask": "result", "pay": "approval"}
    frames += first.stop()
    assert first.is_done
    reader = read(name, frames)
    log.provided(ASK)
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    log.result(PAY, "paid")
    log.answer(text="It is paid.", kind=RunCompleted, stop_reason="stop")
    whole = encoded(ENCODERS[name](), log.events)
    assert "finish" not in [data["type"] for data in plain(whole)[:-2] if data != "[DONE]"], "it is read through"
    next_frames = encoded(ENCODERS[name](behind=["pay"]), log.events)
    assert next_frames == encoded(ENCODERS[name](behind=["pay", "unknown"]), log.events)
    for data in plain(next_frames):
        reader.feed(data)
    if isinstance(reader, UiMessage):
        assert plain(frames)[-2]["finishReason"] == "tool-calls" and reader.finish == "stop" and reader.ended == 2
        read_through = read(name, whole)
        assert reader.parts == read_through.parts and reader.id == read_through.id
    else:
        (interrupt,) = reader.finished[0]["outcome"]["interrupts"]
        assert (interrupt["id"], interrupt["message"]) == (f"{RUN}.pay", "over 100 euros")
        assert all(
            message_id.startswith(f"{RUN}-")
            for message_id, message in reader.messages.items()
            if message["role"] == "assistant"
        )
        assert [message["content"] for message in reader.messages.values()][-1] == "It is paid."
    for cut, frame in enumerate(next_frames):
        rest = encoded(ENCODERS[name](frame.id, behind=["pay"]), stored(log.events))
        assert texts_of(name, [*frames, *next_frames[: cut + 1], *rest]) == texts_of(name, [*frames, *next_frames])


@pytest.mark.parametrize("verdict", ["rejected", "provided"])
def test_an_agent_of_ag_ui_gets_each_result_once(verdict: str) -> None:
    log = Log(random.Random(7))
    log.answer(ASK, PAY, text="I ask you twice.")
    for use in (ASK, PAY):
        log.add(ApprovalRequested, call_id=use.call_id, name=use.name, input=use.input, wants="approval")
    result = ToolResult(call_id="ask", text="told", is_error=verdict == "rejected")
    log.add(CallDecided, call_id="ask", verdict=verdict, blocks=(result,))
    first = AgUiEncoder("thread", behind=["ask"])
    assert "TOOL_CALL_RESULT" in str(plain(encoded(first, log.events))) and dict(first.waiting) == {"pay": "approval"}
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    log.result(PAY, "paid")
    log.answer(text="Thank you.", kind=RunCompleted, stop_reason="stop")
    frames = encoded(AgUiEncoder("thread", behind=["pay"], had=["ask"]), log.events)
    assert [frame["toolCallId"] for frame in plain(frames) if frame["type"] == "TOOL_CALL_RESULT"] == ["pay"]
    for cut, frame in enumerate(frames):
        assert encoded(AgUiEncoder("thread", last_event_id=frame.id), log.events) == frames[cut + 1 :]
    elsewhere = encoded(AgUiEncoder("thread", behind=["pay"]), log.events)
    assert "'ask-result'" in str(plain(elsewhere)), "it was decided elsewhere: the client has not heard of it"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_stream_between_two_calls_is_resumed_after_its_end(name: str) -> None:
    log = Log(random.Random(7))
    log.answer(ASK, PAY, text="I ask you twice.")
    log.add(StepStarted, step="s1", name="search")
    for use in (ASK, PAY):
        log.add(ApprovalRequested, call_id=use.call_id, name=use.name, input=use.input, wants="result")
    log.provided(ASK)
    first = ENCODERS[name](behind=["ask"])
    frames = encoded(first, log.events)
    assert dict(first.waiting) == {"pay": "result"}
    end = first.stop()
    frames += end
    log.provided(PAY)
    log.answer(text="Thank you.", kind=RunCompleted, stop_reason="stop")
    whole = [*frames, *encoded(ENCODERS[name](frames[-1].id), log.events)]
    for cut, frame in enumerate(frames):
        if frame in end:
            assert encoded(ENCODERS[name](frame.id), log.events) == whole[cut + 1 :]


def waits_of(name: str, log: Log) -> list[tuple[int, list[str]]]:
    """Return after how many events a run begins to wait for somebody, and the calls that do."""
    encoder, waits = ENCODERS[name](), list[tuple[int, list[str]]]()
    for number, event in enumerate(log.events, 1):
        encoder.add(event)
        waiting = list(encoder.waiting)
        if waiting and not (waits and set(waiting) <= set(waits[-1][1])):
            waits.append((number, waiting))
    return waits


@pytest.mark.parametrize("name", ENCODERS)
def test_a_cut_stream_after_a_call_goes_on_without_that_call(name: str) -> None:
    """As by GET: then nobody says behind which calls the stream began."""
    for seed in SEEDS[::3]:
        log, dice = random_run(seed), random.Random(seed)
        for number, waiting in waits_of(name, log):
            first = ENCODERS[name]()
            had, end = encoded(first, log.events[:number]), first.stop()
            behind = dice.sample(waiting, dice.randint(1, len(waiting)))
            later = encoded(ENCODERS[name](behind=behind), log.events)
            whole = texts_of(name, [*had, *end, *later])
            for cut in dice.sample(range(len(later)), min(len(later), 6)):
                rest = encoded(ENCODERS[name](later[cut].id), log.events)
                assert rest == later[cut + 1 :], (seed, cut)
                again = encoded(ENCODERS[name](later[cut].id), stored(log.events))
                assert texts_of(name, [*had, *end, *later[: cut + 1], *again]) == whole, (seed, cut)
            anew = encoded(ENCODERS[name](end[-1].id), log.events)
            read(name, [*had, *end, *anew])
            if name == "vercel":  # it has no results that its client may have given
                assert plain(anew) == plain(encoded(ENCODERS[name](behind=waiting), log.events)), seed
            for cut, frame in enumerate(end):
                rest = encoded(ENCODERS[name](frame.id), log.events)
                assert rest == [*end[cut + 1 :], *anew], (seed, cut)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_merged_run_has_the_answer_of_the_run_it_joined(name: str) -> None:
    log = Log(random.Random(6))
    log.answer(LOOK, text="I look.")
    log.result(LOOK)
    log.answer(text="Seen.", kind=RunCompleted)
    about: dict[str, Any] = {"session_id": "s", "at": 5.0, "run_id": "f" * 24}
    own_events: list[AnyEvent] = [
        RunQueued(seq=3, **about),
        CustomEvent(seq=4, name="note", data=FrozenDict(), **about),
    ]
    ended = RunCancelled(seq=5, why="merged", code="merged", successor=RUN, **about)
    live = encoded(ENCODERS[name](), log.events)
    assert encoded(ENCODERS[name](), [*own_events, ended, *log.events]) == live
    assert not encoded(ENCODERS[name](), own_events), "it has not started"
    own = [*own_events, RunCancelled(seq=5, why="enough", **about)]
    assert "note" in str(plain(encoded(ENCODERS[name](), own)))

    class Merging:
        """A run that ends as merged, and leads to the other one from then on."""

        pages = iter([EventPage(own_events, 4), EventPage([ended], 5), EventPage(log.events, None)])

        def event_page(self, after: int, limit: int, *, wait_s: float) -> EventPage:
            page = next(self.pages)
            assert after == {3: 0, 5: 4}.get(page[0].seq, 0)
            return page

    streamed = b"".join(front_end_stream(cast(ExecutionHandle, Merging()), ENCODERS[name]()))
    assert streamed == b"".join(frame.encode() for frame in live)


class Held:
    """A run that waits for somebody after these events."""

    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self.events = events

    def event_page(self, after: int, limit: int, *, wait_s: float) -> EventPage:
        assert after == 0 or wait_s == 0.0, "nothing more comes"
        return EventPage(self.events if after == 0 else (), len(self.events))

    def pending(self) -> list[PendingCall]:
        return [PendingCall(call_id="pay", name="pay", input=FrozenDict(), wants="approval", why=None)]

    def info(self) -> Any:
        return SimpleNamespace(state="awaiting_approval")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_stream_ends_at_a_call_that_waits_beside_a_running_one(name: str) -> None:
    log = Log(random.Random(2))
    log.answer(LOOK, PAY, text="I look, and pay.")
    for tool_call in (PAY, LOOK):
        log.add(ToolStarted, call_id=tool_call.call_id, name=tool_call.name)
    log.add(ApprovalRequested, call_id="pay", name="pay", input=PAY.input, wants="approval")
    encoder = ENCODERS[name]()
    frames = encoded(encoder, log.events)
    assert not encoder.waiting and dict(encoder.waiting_calls) == {"pay": "approval"}, "the other one has no result yet"
    streamed = b"".join(front_end_stream(cast(ExecutionHandle, Held(log.events)), ENCODERS[name]()))
    assert streamed == b"".join(frame.encode() for frame in [*frames, *encoder.stop()])
    log.result(LOOK)
    encoder = ENCODERS[name]()
    encoded(encoder, log.events)
    assert dict(encoder.waiting) == {"pay": "approval"}
    log.add(CallDecided, call_id="pay", verdict="approved")
    log.result(PAY)
    log.answer(text="Paid.", kind=RunCompleted)
    rest = encoded(ENCODERS[name](behind=["pay"]), stored(log.events))
    assert "Paid." in str(plain(rest)) and "I look" not in str(plain(rest))


def test_parts_of_a_ui_message_stream_match_the_ai_sdk() -> None:
    log = Log(random.Random(3))
    log.add(CustomEvent, name="rows", data=FrozenDict({"count": 1}))
    log.answer(LOOK, PAY, thoughts=["Hm."], text="One.")
    for result in (
        ToolResult(call_id="look", text='{"a": [1]}', is_json=True),
        ToolResult(call_id="pay", text="no money", is_error=True),
    ):
        log.add(ToolEnded, call_id=result.call_id, name=result.call_id, blocks=(result,))
    picture = Image(data="AAAA", media_type="image/png")
    blocks = (Text(text="See."), picture, Document(name="a.pdf", url="https://x/a.pdf"), Citations(items=({"u": 1},)))
    log.stream(text="See.")
    log.add(RunCompleted, blocks=blocks, usage=Usage(input_tokens=3, output_tokens=2, counted_tokens=1))
    frames = encoded(VercelEncoder(), log.events)
    body = b"".join(frame.encode() for frame in frames)
    assert b'"totalTokens":5,"countedTokens":1' in body
    message = read("vercel", frames)
    kinds = [part["type"] for part in message.parts]
    first = ["step-start", "data-rows", "reasoning", "text", "tool-look", "tool-pay"]
    assert kinds == [*first, "step-start", "text", "file", "file", "data-citations"]
    assert message.parts[4]["output"] == {"a": [1]} and message.parts[5]["errorText"] == "no money"
    assert message.parts[8]["url"] == "data:image/png;base64,AAAA" and message.finish == "stop"


def test_questions_about_budgets_are_calls_and_typed_answers_are_not() -> None:
    log = Log(random.Random(4))
    log.answer(ToolUse(call_id="f", name=ANSWER_TOOL, input=FrozenDict({})), text="")
    result = ToolResult(call_id="f", text="wrong", is_error=True)
    log.add(ToolEnded, call_id="f", name=ANSWER_TOOL, blocks=(result,), is_error=True)
    log.add(ApprovalRequested, call_id="budget-1", name="budget", input=FrozenDict({"tokens": 9}), wants="budget")
    encoder = VercelEncoder()
    frames = encoded(encoder, log.events)
    assert dict(encoder.waiting) == {"budget-1": "budget"}
    log.add(CallDecided, call_id="budget-1", verdict="approved")
    log.add(RunResumed, why="all decisions have been made")
    log.answer(text="{}", kind=RunCompleted)
    message = read("vercel", encoded(VercelEncoder(), log.events))
    assert [part["type"] for part in message.parts] == ["step-start", "tool-budget", "step-start", "text"]
    assert plain(frames)[-1]["type"] == "tool-approval-request"


def test_what_is_no_id_of_a_frame_is_refused() -> None:
    texts = ("0.0.10000.0.0.1-0.0.0.0.0.0", "0.0.0.0.0.0-0.0.999999999999999999.0.0.1")
    for wrong in ("x", "7", "1.1.1-0-0", "1.1.0-0.0.0.0.0-0.0.0.0.٣", "9" * 5000, *(f"0.0.0-{text}" for text in texts)):
        with pytest.raises(InvalidInputError, match="Last-Event-ID"):
            VercelEncoder(wrong)


@pytest.mark.parametrize("name", ENCODERS)
def test_ids_that_no_frame_has_lead_to_a_bounded_number_of_frames(name: str) -> None:
    log = Log(random.Random(1))
    log.answer(text="Hi.", kind=RunCompleted)
    high = "9" * 18
    for place in (f"0.{high}.9999.{high}.{high}.{high}", f"0.0.9999.{high}.{high}.{high}"):
        frames = encoded(ENCODERS[name](f"0.0.0-{place}-{place}"), log.events)
        assert len(frames) < 100


def test_a_run_that_waited_in_the_queue_and_events_of_other_runs() -> None:
    log = Log(random.Random(5))
    about: dict[str, Any] = {"session_id": "s", "at": 5.0, "run_id": RUN}
    queued = RunQueued(seq=1, **about)
    foreign_delta = TextDelta(seq=3, session_id="s", at=5.0, run_id="f" * 24, text="of another run")
    log.answer(text="Hi.", kind=RunCompleted)
    frames = encoded(VercelEncoder(), [queued, foreign_delta, *log.events])
    assert plain(frames)[0] == {"type": "start", "messageId": RUN}
    assert read("vercel", frames).parts == [{"type": "step-start"}, {"type": "text", "text": "Hi.", "state": "done"}]
