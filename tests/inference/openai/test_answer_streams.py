"""Answers that come in many pieces, or only as a whole: in each API, the same answer in time linear in its length."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from turnwise.actors.inference.openai.chat import ChatAnswer
from turnwise.actors.inference.openai.responses_answer import ResponsesAnswer
from turnwise.adapters.anthropic.messages import MessagesAnswer
from turnwise.adapters.front_ends.answers import Answers
from turnwise.http.openai.chat_completions.completions import Completion
from turnwise.http.openai.projection import Projection
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolUse
from turnwise.memory.conversation.events import RunCompleted, RunStarted, TextDelta
from turnwise.memory.conversation.transcript import Ledger
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.conversation.views.partial_typed_answer import Partials

Events = Iterable[Mapping[str, Any]]

SUN = "\N{SUN WITH FACE}"
HALVES = "\ud83c", "\udf1e"


# Events of each API


def chat(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def chat_call(piece: str, **function: Any) -> dict[str, Any]:
    return chat({"tool_calls": [{"index": 0, "id": "c1", "function": {**function, "arguments": piece}}]})


def item(kind: str, **values: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "output_index": 0, "content_index": 0, "summary_index": 0, **values}


CALL = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "save"}


def block_of(kind: str, **values: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": {"type": kind, **values}}


def delta_of(kind: str, **values: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **values}}


BEGUN_CALL = block_of("tool_use", id="c1", name="save", input={})

STREAMS: dict[str, tuple[Callable[[], Any], list[Any], Callable[[str], Any], str]] = {
    "chat text": (ChatAnswer, [], lambda piece: chat({"content": piece}), "text"),
    "chat refusal": (ChatAnswer, [], lambda piece: chat({"refusal": piece}), "text"),
    "chat thought": (ChatAnswer, [], lambda piece: chat({"reasoning_content": piece}), "thinking"),
    "chat arguments": (ChatAnswer, [chat_call("", name="save")], chat_call, "call"),
    "responses text": (ResponsesAnswer, [], lambda piece: item("output_text.delta", item_id="m", delta=piece), "text"),
    "responses refusal": (ResponsesAnswer, [], lambda piece: item("refusal.delta", item_id="m", delta=piece), "text"),
    "responses summary": (
        ResponsesAnswer,
        [],
        lambda piece: item("reasoning_summary_text.delta", item_id="r", delta=piece),
        "thinking",
    ),
    "responses thought": (
        ResponsesAnswer,
        [],
        lambda piece: item("reasoning_text.delta", item_id="r", delta=piece),
        "thinking",
    ),
    "responses arguments": (
        ResponsesAnswer,
        [item("output_item.added", item={**CALL, "arguments": ""})],
        lambda piece: item("function_call_arguments.delta", item_id="fc", delta=piece),
        "call",
    ),
    "anthropic text": (
        MessagesAnswer,
        [block_of("text", text="")],
        lambda piece: delta_of("text_delta", text=piece),
        "text",
    ),
    "anthropic thought": (
        MessagesAnswer,
        [block_of("thinking", thinking="")],
        lambda piece: delta_of("thinking_delta", thinking=piece),
        "thinking",
    ),
    "anthropic arguments": (
        MessagesAnswer,
        [BEGUN_CALL],
        lambda piece: delta_of("input_json_delta", partial_json=piece),
        "call",
    ),
}
"""By name: an empty answer, the events before the pieces, the event of a piece, and what the pieces are."""


def read(answer: Any, events: Events) -> tuple[list[AnyBlock], list[Any]]:
    """Return the blocks of an answer, and the parts to emit."""
    parts = [part for event in events for part in answer.add(event)]
    parts += answer.end()
    blocks: list[AnyBlock] = answer.blocks()
    return blocks, parts


def shown(parts: Sequence[Any]) -> str:
    return "".join(part.text if isinstance(part, Thinking) else part for part in parts)


def text_of(block: Block) -> str:
    if isinstance(block, ToolUse):
        return str(block.input["text"])
    assert isinstance(block, Text | Thinking)
    return block.text


def pieces_of(name: str, pieces: Sequence[str]) -> list[Mapping[str, Any]]:
    _, begun, event, kind = STREAMS[name]
    if kind == "call":
        pieces = ['{"text": "', *pieces, '"}']
    return [*begun, *map(event, pieces)]


# Time


def cost(work: Callable[[], object]) -> float:
    """Return the least seconds of the processor that some work takes, without collecting what other tests left."""
    took = []
    gc.disable()
    try:
        for _ in range(3):
            began = time.process_time()
            work()
            took.append(time.process_time() - began)
    finally:
        gc.enable()
    return min(took)


def growth(work: Callable[[list[str]], object], number: int = 400, chars: int = 1000) -> float:
    """Return how many times longer work takes with eight times as many pieces: about 8 if linear, 64 if quadratic."""
    few, many = ["x" * chars] * number, ["x" * chars] * (8 * number)
    work(few)
    return cost(lambda: work(many)) / cost(lambda: work(few))


MOST = 32
"""More than any noise makes of 8, and less than 64."""


@pytest.mark.parametrize("name", STREAMS)
def test_many_pieces_of_an_answer_take_linear_time(name: str) -> None:
    assert growth(lambda pieces: read(STREAMS[name][0](), pieces_of(name, pieces))) < MOST


def test_many_pieces_that_repeat_the_name_take_linear_time() -> None:
    def work(pieces: list[str]) -> None:
        events = [
            chat({"tool_calls": [{"function": {"name": "save", "arguments": piece}}]})
            for piece in ('{"text": "', *pieces, '"}')
        ]
        (block,), _ = read(ChatAnswer(), events)
        assert isinstance(block, ToolUse) and block.flaw is None

    assert growth(work) < MOST


@pytest.mark.parametrize("field", ["text", "summary", "data"])
def test_many_pieces_of_attached_thoughts_take_linear_time(field: str) -> None:
    def work(pieces: list[str]) -> None:
        read(
            ChatAnswer("openrouter"),
            [chat({"reasoning_details": [{"index": 0, "type": "t", field: piece}]}) for piece in pieces],
        )

    assert growth(work) < MOST
    signed = growth(
        lambda pieces: read(
            ChatAnswer("litellm"),
            [chat({"thinking_blocks": [{"type": "thinking", "thinking": piece}]}) for piece in pieces],
        )
    )
    assert signed < MOST


def test_an_output_grows_in_linear_time_also_where_thoughts_and_text_alternate() -> None:
    def work(pieces: list[str]) -> None:
        ledger = Ledger()
        for piece in pieces:
            ledger.append_thinking(piece)
            ledger.append_text(piece)
        assert [len(block.text) for block in ledger.blocks() if isinstance(block, Text | Thinking)] == [
            1000 * len(pieces)
        ] * 2

    assert growth(work) < MOST


ABOUT: dict[str, Any] = {"session_id": "s", "at": 0.0, "run_id": "0" * 24, "turn_index": 0}


def deltas(pieces: Sequence[str]) -> list[Any]:
    """Return the events of a run that streams these pieces."""
    ended = RunCompleted(seq=len(pieces) + 2, blocks=(Text(text="".join(pieces)),), **ABOUT)
    text_deltas = [TextDelta(seq=seq, text=piece, **ABOUT) for seq, piece in enumerate(pieces, 2)]
    return [RunStarted(seq=1, **ABOUT), *text_deltas, ended]


READERS: dict[str, Callable[[Sequence[Any]], object]] = {
    "partials": lambda events: list(Partials().add(events)),
    "completion": lambda events: [list(answer.add(event)) for answer in [Completion("r", "m", 0)] for event in events],
    "response": lambda events: [list(answer.add(event)) for answer in [Projection("0" * 24, 0)] for event in events],
    "front ends": lambda events: [list(answer.add(event)) for answer in [Answers()] for event in events],
}


@pytest.mark.parametrize("reader", READERS)
def test_many_deltas_of_a_run_are_read_in_linear_time(reader: str) -> None:
    events_by_size: dict[int, list[Any]] = {}

    def work(pieces: list[str]) -> None:
        if len(pieces) not in events_by_size:
            first = '{"text": "' if reader == "partials" else ""
            events_by_size[len(pieces)] = deltas([first, *pieces, '"}' if first else ""])
        READERS[reader](events_by_size[len(pieces)])

    # A text of megabytes leaves the processor's cache, so that reading it again takes more time for each character.
    assert growth(work, chars=100) < MOST


# Halves of characters


@pytest.mark.parametrize("name", STREAMS)
def test_halves_of_a_character_in_two_pieces_become_one_character(name: str) -> None:
    events = [json.loads(json.dumps(event)) for event in pieces_of(name, ["Sun: " + HALVES[0], HALVES[1] + "."])]
    blocks, parts = read(STREAMS[name][0](), events)
    assert [text_of(block) for block in blocks] == [f"Sun: {SUN}."]
    if STREAMS[name][3] != "call":
        assert shown(parts) == f"Sun: {SUN}."
    for part in parts:
        shown([part]).encode()


@pytest.mark.parametrize("name", [name for name, stream in STREAMS.items() if stream[3] != "call"])
def test_half_a_character_at_the_end_is_replaced(name: str) -> None:
    blocks, parts = read(STREAMS[name][0](), pieces_of(name, ["Sun: ", HALVES[0]]))
    assert text_of(blocks[0]) == shown(parts) == "Sun: \N{REPLACEMENT CHARACTER}"


# What comes as a whole


TEXT_ITEM = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Sun."}]}
REFUSAL_ITEM = {"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "No."}]}
THOUGHT_ITEM = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
CALL_ITEM = {**CALL, "arguments": '{"text": "Sun."}'}
COMPLETED = {"type": "response.completed", "response": {"status": "completed", "output": []}}


def completed(*output: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": list(output), **more}}


@pytest.mark.parametrize(
    ("events", "blocks", "emitted"),
    [
        ([item("output_text.done", item_id="m", text="Sun."), COMPLETED], [Text(text="Sun.")], "Sun."),
        (
            [item("content_part.done", item_id="m", part=TEXT_ITEM["content"][0]), COMPLETED],
            [Text(text="Sun.")],
            "Sun.",
        ),
        ([item("output_item.done", item=TEXT_ITEM), COMPLETED], [Text(text="Sun.")], "Sun."),
        ([completed(TEXT_ITEM)], [Text(text="Sun.")], "Sun."),
        ([item("refusal.done", item_id="m", refusal="No."), COMPLETED], [Text(text="No.")], "No."),
        ([completed(REFUSAL_ITEM)], [Text(text="No.")], "No."),
        (
            [
                item("output_text.delta", item_id="m", delta="Su"),
                item("output_text.done", item_id="m", text="Sun."),
                COMPLETED,
            ],
            [Text(text="Sun.")],
            "Sun.",
        ),
        (
            [
                item("output_text.delta", item_id="m", delta="Sun."),
                item("output_item.done", item=TEXT_ITEM),
                completed(TEXT_ITEM),
            ],
            [Text(text="Sun.")],
            "Sun.",
        ),
        (
            [item("output_text.delta", item_id="m", delta="Sun."), completed({**TEXT_ITEM, "id": "other"})],
            [Text(text="Sun.")],
            "Sun.",
        ),
        (
            [item("output_text.delta", item_id="m", delta="Sun."), completed(TEXT_ITEM, {**TEXT_ITEM, "id": "m2"})],
            [Text(text="Sun.\n\nSun.")],
            "Sun.\n\nSun.",
        ),
        (
            [item("reasoning_summary_text.done", item_id="rs", text="Hm."), completed(THOUGHT_ITEM, TEXT_ITEM)],
            [Thinking(text="Hm."), Text(text="Sun.")],
            "Hm.Sun.",
        ),
        (
            [
                item("reasoning_text.delta", item_id="rs", delta="Hm."),
                item("output_item.done", item=THOUGHT_ITEM),
                COMPLETED,
            ],
            [Thinking(text="Hm.")],
            "Hm.",
        ),
        ([completed(THOUGHT_ITEM, TEXT_ITEM)], [Thinking(text="Hm."), Text(text="Sun.")], "Hm.Sun."),
    ],
)
def test_what_only_an_event_about_the_whole_says_is_not_lost(
    events: list[Any], blocks: list[Block], emitted: str
) -> None:
    answer = ResponsesAnswer()
    blocks_read, parts = read(answer, events)
    assert blocks_read == blocks
    assert shown(parts) == emitted
    assert answer.refusal == ("No." if emitted == "No." else "")


ADDED = item("output_item.added", item={**CALL, "arguments": ""})
PIECE = item("function_call_arguments.delta", item_id="fc", delta='{"text": ')
DONE = item("function_call_arguments.done", item_id="fc", arguments=CALL_ITEM["arguments"])


@pytest.mark.parametrize(
    "events",
    [
        [ADDED, DONE, COMPLETED],
        [ADDED, PIECE, DONE, COMPLETED],
        [ADDED, PIECE, DONE, item("output_item.done", item={**CALL, "arguments": ""}), COMPLETED],
        [
            item("function_call_arguments.done", item_id="fc", name="save", arguments=CALL_ITEM["arguments"]),
            completed(CALL),
        ],
        [item("output_item.added", item=CALL_ITEM), COMPLETED],
        [item("output_item.done", item=CALL_ITEM), COMPLETED],
        [completed(CALL_ITEM)],
    ],
)
def test_arguments_that_come_only_as_a_whole_are_not_lost(events: list[Any]) -> None:
    blocks, _ = read(ResponsesAnswer(), events)
    assert [(block.name, block.input) for block in blocks if isinstance(block, ToolUse)] == [("save", {"text": "Sun."})]
    _, parts = read(ResponsesAnswer(answer_tool="save"), events)
    assert shown(parts) == CALL_ITEM["arguments"]


def test_two_calls_that_differ_only_in_their_ids_stay_two() -> None:
    second = {**CALL_ITEM, "id": "fc_2", "call_id": "c2"}
    blocks, _ = read(ResponsesAnswer(), [ADDED, DONE, completed(CALL_ITEM, second)])
    assert [block.call_id for block in blocks if isinstance(block, ToolUse)] == ["c1", "c2"]


def test_a_whole_message_after_a_chat_stream_adds_the_missing_text() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "save", "arguments": "{}"}}
    last = {
        "choices": [{"index": 0, "message": {"content": "Sun.", "tool_calls": [call]}, "finish_reason": "tool_calls"}]
    }
    blocks, parts = read(ChatAnswer(), [chat({"content": "Sun."}), last])
    assert blocks == [Text(text="Sun."), ToolUse(call_id="c1", name="save")]
    assert parts == ["Sun."]


def test_arguments_that_anthropic_sends_at_the_beginning_of_a_call_are_kept() -> None:
    events = [
        block_of("tool_use", id="c1", name="save", input={"text": "Sun."}),
        {"type": "content_block_stop", "index": 0},
    ]
    assert read(MessagesAnswer(), events)[0] == [ToolUse(call_id="c1", name="save", input={"text": "Sun."})]
    assert read(MessagesAnswer("save"), events)[1] == ['{"text": "Sun."}']
    streamed = [*events[:1], delta_of("input_json_delta", partial_json='{"text": "Rain."}'), events[1]]
    assert read(MessagesAnswer(), streamed)[0] == [ToolUse(call_id="c1", name="save", input={"text": "Rain."})]


# Usage

ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
SPENT = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
TOKENS = Usage(input_tokens=7, output_tokens=5, cached_tokens=4, calls=1)


@pytest.mark.parametrize(
    "reported",
    [
        [SPENT, ZERO],
        [SPENT, {**ZERO, "prompt_tokens_details": None}],
        [{"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}, {"completion_tokens": 5}],
        [{**SPENT, "completion_tokens": 1}, {**SPENT, "completion_tokens": 3}, SPENT, None],
        [None, {}, SPENT, {"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": 0}}],
    ],
)
def test_usage_that_is_split_grows_or_ends_with_zeros_is_counted(reported: list[Any]) -> None:
    answer = ChatAnswer()
    read(answer, [chat(usage=usage) for usage in reported])
    assert answer.usage == TOKENS
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    responses_answer = ResponsesAnswer()
    for usage in reported:
        reported_usage = usage and {
            names.get(name, name.replace("prompt", "input")): value for name, value in usage.items()
        }
        responses_answer.add({"type": "response.in_progress", "response": {"usage": reported_usage}})
    responses_answer.add(completed(usage=None))
    assert responses_answer.usage == TOKENS


def test_usage_of_anthropic_is_not_overwritten_by_later_zeros() -> None:
    begun = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}
    answer = MessagesAnswer()
    answer.add({"type": "message_start", "message": {"usage": begun}})
    answer.add({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}})
    late = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": None}
    answer.add({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": late})
    assert answer.usage == TOKENS
