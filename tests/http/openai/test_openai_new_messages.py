"""What is new in a chat that continues a session, and what of it is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from turnwise.http.openai.chat_completions.messages import read_messages
from turnwise.http.openai.chat_completions.new_messages import New, is_alone, news
from turnwise.http.openai.errors import OpenAIError
from turnwise.memory.conversation.blocks import AnyBlock, Image, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.spans import Span, cut
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.views.chat_messages import ChatMessage, chat_messages_of

PIXEL = "data:image/png;base64,aGk="
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
USE, RESULT = ToolUse(call_id="c1", name="look", input={"at": "it"}), ToolResult(call_id="c1", text="seen")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(calls) or None}


def tool(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def turns(*specs: Any) -> Iterator[ChatMessage]:
    """Yield the messages of turns: a status, prompts, and answers."""
    for index, (status, prompt, output) in enumerate(specs):
        prompts = [User(text=text) if isinstance(text, str) else text for text in prompt]
        outputs = [Text(text=text) if isinstance(text, str) else text for text in output]
        spans = cut([Span("1", 0, len(prompts) + len(outputs))], len(prompts))
        record = TurnRecord(index=index, status=status, prompt=spans[0], output=spans[1])
        yield from chat_messages_of("s", record, None, prompts, outputs)


def continued(messages: list[Any], *stored: Any) -> New:
    return news(read_messages(messages), turns(*stored))


def shown(blocks: list[AnyBlock]) -> list[Any]:
    return [getattr(block, "text", None) or block.kind for block in blocks]


HI, YOU = ("completed", ["hi"], ["hello there"]), ("completed", ["and you?"], [Thinking(text="hm"), "fine"])
CALLING = ("running", ["look"], ["let me", USE])
CALLED = ("completed", ["look"], ["let me", USE, RESULT, "a cat"])


@pytest.mark.parametrize(
    ("messages", "stored", "new"),
    [
        ([user("hi")], (), ["hi"]),
        ([user("hi")], (HI,), ["hi"]),
        ([user("more")], (HI, YOU), ["more"]),
        ([user("hi"), assistant("hello there"), user("and you?")], (), ["hi", "hello there", "and you?"]),
        ([user("hi"), assistant("hello there"), user("and you?")], (HI,), ["and you?"]),
        ([user("hi"), assistant(" hello\nthere "), user("and you?")], (HI,), ["and you?"]),
        ([user("hi"), assistant("hello"), user("and you?")], (HI,), ["and you?"]),
        ([user("hi"), user("and you?")], (HI,), ["and you?"]),
        ([user("hi"), assistant("hello there"), user("x"), assistant("y"), user("z")], (HI,), ["x", "y", "z"]),
        ([user("hi"), user("a"), user("b")], (HI,), ["a", "b"]),
        ([user("hi"), assistant("hello there"), user("a")], (("failed", ["hi"], []), HI), ["a"]),
        ([user("hi"), assistant("hello there"), user("a")], (("failed", ["no"], []), HI), ["a"]),
        ([user("a"), assistant("b"), user("hi")], (("failed", ["no"], []),), ["a", "b", "hi"]),
        ([user("look"), assistant("let me", CALL), tool("seen"), assistant("a cat"), user("a")], (CALLED,), ["a"]),
        ([user("look"), assistant("let me\n\na cat"), user("a")], (CALLED,), ["a"]),
        ([user("look"), assistant("a"), user("b")], (("completed", ["look"], [USE, RESULT, "a"]),), ["b"]),
    ],
)
def test_what_comes_after_the_session_s_messages_is_new(messages: Any, stored: Any, new: list[str]) -> None:
    continuation = continued(messages, *stored)
    assert shown(continuation.prompts) == new and not continuation.repeats and not continuation.results


def test_attachments_belong_to_a_message() -> None:
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "what is"}, picture, {"type": "text", "text": "this?"}],
    }
    first = read_messages([message])
    assert shown(first.blocks) == ["what is\nthis?", "image"] and is_alone(first)
    stored = ("completed", ["what is\nthis?", Image(data="aGk=", media_type="image/png")], ["a cat"])
    assert shown(continued([message, assistant("a cat"), user("why?")], stored).prompts) == ["why?"]
    with pytest.raises(OpenAIError, match=r"messages\[1\] does not continue the session"):
        continued([user("what is\nthis?"), assistant("a cat"), user("why?")], stored)


def test_results_are_for_the_run_that_waits() -> None:
    whole = [user("look"), assistant("let me", CALL), tool("seen")]
    for messages in (
        whole,
        [tool("seen")],
        [*whole[:2], tool("seen"), tool("heard", "c2")],
        [tool("seen"), tool("heard", "c2")],
    ):
        new = continued(messages, CALLING)
        assert [result.text for result in new.results] == ["seen", "heard"][: len(new.results)] and new.results
        assert not new.prompts and not new.repeats
    with pytest.raises(OpenAIError, match="nothing may come after them"):
        continued([*whole, user("and?")], CALLING)


def test_a_request_without_anything_new_repeats_the_last_one() -> None:
    for stored in ((HI, YOU), (HI, ("failed", ["and you?"], [])), (HI, ("running", ["and you?"], []))):
        new = continued([user("hi"), assistant("hello there"), user("and you?")], *stored)
        assert new.repeats and not new.after
    new = continued([user("look"), assistant("let me", CALL), tool("seen")], CALLED)
    assert new.repeats and new.after == {"c1"}


@pytest.mark.parametrize(
    ("messages", "stored", "param", "reason"),
    [
        ([user("ho"), user("and you?")], (HI,), "messages[0]", "turn 0 of the session has another message there"),
        ([user("hi"), assistant("bye"), user("a")], (HI,), "messages[1]", "not what the assistant has said"),
        ([user("hi"), assistant("hello there and more"), user("a")], (HI,), "messages[1]", "not what the assistant"),
        ([assistant("x"), user("hi"), user("a")], (HI,), "messages[0]", "turn 0"),
        ([user("hi"), assistant("hello there"), user("x")], (HI, YOU), "messages[2]", "turn 1 of the session has"),
        ([user("a"), user("hi")], (HI,), "messages[0]", "turn 0"),
        (
            [user("look"), assistant(None, {**CALL, "id": "c9"}), tool("x", "c9"), user("a")],
            (CALLED,),
            "messages[1]",
            "'c9'",
        ),
        ([user("look"), assistant(None, CALL), tool("other"), user("a")], (CALLED,), "messages[1]", "another result"),
        ([user("hi"), assistant("hello there"), user("look")], (HI, CALLED, YOU), "messages", "gone on with turn 2"),
    ],
)
def test_another_conversation_than_the_session_s_is_refused(
    messages: Any, stored: Any, param: str, reason: str
) -> None:
    with pytest.raises(OpenAIError) as refused:
        continued(messages, *stored)
    assert (refused.value.status, refused.value.param, refused.value.code) == (422, param, "conflict")
    assert reason in str(refused.value) and "X-Session-Id" in str(refused.value)


def test_each_cut_of_a_conversation_continues_what_was_said_before_it() -> None:
    stored = [HI, CALLED, YOU]
    whole = [
        user("hi"),
        assistant("hello there"),
        user("look"),
        assistant("let me", CALL),
        tool("seen"),
        assistant("a cat"),
        user("and you?"),
        assistant("fine"),
        user("bye"),
    ]
    ends = {0: 0, 1: 2, 2: 6, 3: 8}
    for count, end in itertools.islice(ends.items(), 1, None):
        new = continued(whole, *stored[:count])
        assert new.prompts == read_messages(whole[end:]).blocks


@pytest.mark.parametrize(
    ("messages", "param", "reason"),
    [
        ([{"role": "system", "content": "x"}], "messages", "no message of the user"),
        ([user("hi"), assistant("x")], "messages", "must be of the user or of a tool"),
        (["hi"], "messages[0]", "must be an object"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", "must be one of"),
        ([{"role": "user", "content": "x", "name": "ann"}], "messages[0].name", "does not support"),
        ([{"role": "user"}], "messages[0].content", "a text or a list"),
        (
            [user("hi"), {"role": "assistant", "content": None}, user("x")],
            "messages[1].content",
            "a content or tool_calls",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type", "'input_audio'"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "Missing"),
        (
            [user("x"), assistant(None, {**CALL, "type": "custom"}), user("y")],
            "messages[1].tool_calls[0].type",
            "functions",
        ),
        (
            [user("x"), assistant(None, {**CALL, "function": {"name": "f", "arguments": "[]"}}), user("y")],
            "messages[1].tool_calls[0].function.arguments",
            "JSON text of an object",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}}]}],
            "messages[0].content[0].image_url.detail",
            "only 'auto'",
        ),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}],
            "messages[0].content[0].file.file_id",
            "there is no file 'f-1': upload it first",
        ),
    ],
)
def test_a_message_that_is_not_supported_is_named(messages: Any, param: str, reason: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        read_messages(messages)
    assert (refused.value.status, refused.value.param) == (400, param) and reason in str(refused.value)
