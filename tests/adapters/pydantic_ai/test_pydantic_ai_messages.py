"""Pydantic AI's messages as blocks and back, exactly; and its message histories in sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from tools.agent_world import check_request
from turnwise import InProcess, SessionManager
from turnwise.adapters import MessageHistory, from_pydantic_ai, to_pydantic_ai
from turnwise.engines import NoAnswer
from turnwise.errors import InvalidInputError, SessionChangedError
from turnwise.memory.conversation.blocks import (
    Document,
    Image,
    Recalled,
    Summary,
    System,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    User,
    decode,
    encode,
)

AT = datetime(2026, 11, 23, tzinfo=UTC)

MESSAGES: list[ModelMessage] = [
    ModelRequest(
        parts=[
            SystemPromptPart("Be kind.", timestamp=AT, dynamic_ref="kind"),
            UserPromptPart(
                [
                    "Look:",
                    ImageUrl("https://example.org/cat.png"),
                    BinaryContent(data=b"GIF89a", media_type="image/gif"),
                    DocumentUrl("https://example.org/a.pdf"),
                    BinaryContent(data=b"%PDF", media_type="application/pdf", identifier="a.pdf"),
                    AudioUrl("https://example.org/a.mp3"),
                    CachePoint(ttl="1h"),
                ],
                timestamp=AT,
            ),
        ],
        instructions="Answer in one word.",
        run_id="r1",
        conversation_id="c1",
        metadata={"a": 1},
    ),
    ModelResponse(
        parts=[
            ThinkingPart("Hm.", signature="c2ln", provider_name="anthropic"),
            ThinkingPart("", id="redacted_thinking", signature="c2VjcmV0", provider_name="anthropic"),
            ThinkingPart("", id="rs_1", signature="gAAA", provider_name="openai", provider_details={"raw": ["x"]}),
            NativeToolCallPart("web_search", {"query": "cat"}, "n1", provider_name="anthropic"),
            NativeToolReturnPart("web_search", {"found": 3}, "n1", timestamp=AT, provider_name="anthropic"),
            TextPart("Let me see.", id="t1", provider_details={"thought_signature": "c2ln"}),
            ToolCallPart("look", '{"at": "cat"}', "c1", provider_name="google", provider_details={"thought": "c2ln"}),
            ToolCallPart("count", {"cats": 2}, "c2"),
        ],
        usage=RequestUsage(input_tokens=7, output_tokens=3, cache_read_tokens=2, details={"reasoning_tokens": 1}),
        model_name="claude",
        timestamp=AT,
        provider_name="anthropic",
        provider_response_id="msg_1",
        finish_reason="tool_call",
        run_id="r1",
    ),
    ModelRequest(
        parts=[
            ToolReturnPart("look", {"saw": [1, 2.5, None]}, "c1", metadata={"took": 5}, timestamp=AT),
            ToolReturnPart("count", "there are none", "c2", timestamp=AT, outcome="failed"),
            UserPromptPart("And?", timestamp=AT),
        ]
    ),
    ModelResponse(
        parts=[TextPart("Cat"), FilePart(BinaryContent(data=b"GIF89a", media_type="image/gif"))], timestamp=AT
    ),
    ModelRequest(parts=[RetryFeedbackPart("in one word", retry=RetryInfo("model_retry", attempt=1), timestamp=AT)]),
    ModelResponse(parts=[TextPart("Cat."), TextPart("")], timestamp=AT),
]


def wire(messages: list[ModelMessage]) -> Any:
    return json.loads(ModelMessagesTypeAdapter.dump_json(messages))


def test_messages_come_back_as_they_were_also_from_a_store() -> None:
    stored = [decode(encode(block)) for block in from_pydantic_ai(MESSAGES)]
    assert wire(to_pydantic_ai(stored)) == wire(MESSAGES)


def test_the_blocks_are_a_conversation_that_each_provider_takes() -> None:
    blocks = [*from_pydantic_ai(MESSAGES), User(text="Thanks.")]
    check_request(blocks)
    kinds = [block.kind for block in blocks if block.kind != "unknown"]
    prompt = ["system", "user", "image", "image", "document", "document", "cache_checkpoint"]
    answer = ["thinking", "thinking", "thinking", "text", "tool_use", "tool_use", "tool_result", "tool_result"]
    assert kinds == [*prompt, *answer, "user", "text", "user", "text", "user"]


def test_a_message_with_removed_blocks_is_made_of_the_rest() -> None:
    blocks = from_pydantic_ai(MESSAGES[2:4])
    edited = [Text(text="Dog") if block == Text(text="Cat") else block for block in blocks]
    assert to_pydantic_ai(edited)[1].parts[0] == TextPart("Dog")
    removed = [block for block in blocks if block.kind != "text"]
    first, *_ = to_pydantic_ai(removed)
    assert wire([first]) == wire(MESSAGES[2:3])


def test_blocks_of_any_session_become_messages() -> None:
    blocks = [
        System(text="old"),
        Summary(text="They met.", of=(("1", 0, 9),)),
        Recalled(text="She likes cats."),
        User(text="Look"),
        Image(data="aGk=", media_type="image/png"),
        Document(name="a", text="plain"),
        Thinking(text="unsigned"),
        Thinking(text="Hm.", signature="c2ln"),
        Text(text="I w", interrupted=True),
        ToolUse(call_id="c1", name="look", input={}),
        ToolResult(call_id="c1", text="broken", is_error=True),
        System(text="new"),
        User(text="So?"),
    ]
    request, response, then = to_pydantic_ai(blocks)
    assert request.parts[0].part_kind == "system-prompt" and request.parts[0].content == "new"
    assert [part.part_kind for part in request.parts] == ["system-prompt", "user-prompt"]
    assert [part.part_kind for part in response.parts] == ["thinking", "text", "tool-call"]
    assert response.parts[0] == ThinkingPart("Hm.", signature="c2ln", provider_name="anthropic")
    returned = then.parts[0]
    assert isinstance(returned, ToolReturnPart) and (returned.tool_name, returned.outcome) == ("look", "failed")


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"messages\[1\]"):
        from_pydantic_ai([MESSAGES[0], "Hello"])  # type: ignore[list-item]


@pytest.fixture(scope="module")
def manager() -> Iterator[SessionManager]:
    with SessionManager("memory://histories", engine=NoAnswer(), placement=InProcess()) as manager:
        yield manager


@pytest.fixture
def own_loop() -> Iterator[None]:
    """The event loop that `run_sync` takes, which would leave its own open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


AGENT = Agent(TestModel(), name="t", system_prompt="Be kind.")


@AGENT.tool_plain
def look(at: str) -> str:
    return f"saw {at}"


@pytest.mark.usefixtures("own_loop")
def test_a_history_is_saved_exactly_and_two_writers_do_not_interleave(manager: SessionManager) -> None:
    first, second = (MessageHistory(manager.open("h1")) for _ in range(2))
    assert first.load() == [] == second.load()
    result = AGENT.run_sync("Hello", message_history=first.load())
    first.save(result)
    first.save(AGENT.run_sync("Again", message_history=first.load()))
    with pytest.raises(SessionChangedError, match="'h1' is 1 and not -1"):
        second.save(AGENT.run_sync("Hello from elsewhere", message_history=[]))
    loaded = second.load()
    assert len(loaded) == 6 and wire(loaded[:4]) == wire(result.all_messages())
    second.save(AGENT.run_sync("Now", message_history=loaded))
    assert [turn.status for turn in manager.open("h1").turns()] == ["completed"] * 3
    kinds = [{block.kind for block in message.blocks} for message in manager.open("h1").messages()]
    assert kinds and {"unknown"} not in kinds, "what only Pydantic AI reads is no message"
    manager.open("h1").import_messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    with pytest.raises(SessionChangedError, match="'h1' is 3 and not 2"):
        second.save(result)
    manager.open("h1").clear()
    with pytest.raises(SessionChangedError, match="'h1' is -1 and not 2"):
        second.save(result)
    assert second.load() == []
    second.save(result)
    assert wire(first.load()) == wire(result.all_messages())
    with pytest.raises(InvalidInputError, match="call load"):
        MessageHistory(manager.open("h1")).save(result)


def pays(messages: list[Any], info: Any) -> ModelResponse:
    last_part = messages[-1].parts[-1]
    if isinstance(last_part, UserPromptPart) and last_part.content == "Pay.":
        return ModelResponse(parts=[ToolCallPart("pay", {"euros": 1})])
    return ModelResponse(parts=[TextPart("Done.")])


DEFERRING: Agent[None, Any] = Agent(FunctionModel(pays), output_type=[str, DeferredToolRequests])


@DEFERRING.tool_plain(requires_approval=True)
def pay(euros: int) -> str:
    return f"paid {euros}"


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize("form", ["result", "new messages", "all messages"])
@pytest.mark.parametrize("has_past", [False, True], ids=["first turn", "later turn"])
def test_what_continues_a_saved_history_is_saved_once(manager: SessionManager, form: str, *, has_past: bool) -> None:
    history = MessageHistory(manager.open(f"deferred {form} {has_past}"))
    history.load()
    if has_past:
        history.save(AGENT.run_sync("Hello", message_history=[]))
    first = DEFERRING.run_sync("Pay.", message_history=history.load())
    assert isinstance(first.output, DeferredToolRequests)
    with pytest.raises(InvalidInputError):
        history.save(first)
    approvals = DeferredToolResults(approvals={call.tool_call_id: True for call in first.output.approvals})
    result = DEFERRING.run_sync(message_history=first.all_messages(), deferred_tool_results=approvals)
    source: Any = {"result": result, "new messages": result, "all messages": result.all_messages()}[form]
    for _ in range(2):
        history.save(source)
        assert wire(history.load()) == wire(result.all_messages())
    if form == "new messages":
        history.save(result.new_messages())
        assert wire(history.load()) == wire(result.all_messages())
    later = DEFERRING.run_sync("Again", message_history=history.load())
    for source in (later, later.new_messages(), later.all_messages(), result):
        history.save(source)
    assert wire(history.load()) == wire(later.all_messages())
    assert len(history.session.turns()) == 2 + has_past


@pytest.mark.usefixtures("own_loop")
def test_a_history_that_a_processor_has_shortened_is_saved_whole(manager: SessionManager) -> None:
    history = MessageHistory(manager.open("shortened"))
    history.load()
    history.save(AGENT.run_sync("one", message_history=[]))
    result = AGENT.run_sync("two", message_history=history.load()[-1:])
    history.save(result)
    assert wire(history.load())[-len(result.new_messages()) :] == wire(result.new_messages())
    assert len(history.session.turns()) == 2


def test_prompts_that_were_not_answered_stay_parts_of_their_own() -> None:
    (request,) = to_pydantic_ai(
        [User(text="rude"), User(text="look"), Image(url="https://a.example/b.png"), User(text="again")]
    )
    contents = [part.content for part in request.parts if isinstance(part, UserPromptPart)]
    assert [content if isinstance(content, str) else content[0] for content in contents] == ["rude", "look", "again"]
    assert len(contents[1]) == 2, "a picture belongs to the text before it"
