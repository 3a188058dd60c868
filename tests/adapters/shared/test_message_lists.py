"""Lists of LangChain's and Pydantic AI's messages, by the verbs that take and make lists of all formats."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

from turnwise.errors import InvalidInputError
from turnwise.transcripts import from_messages, to_messages

CALL = {"id": "c1", "name": "find", "args": {"a": 1}}
LANGCHAIN = [
    SystemMessage("Be brief."),
    HumanMessage("one"),
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("here", tool_call_id="c1", name="find"),
    AIMessage("1"),
]
PYDANTIC = [
    ModelRequest(parts=[UserPromptPart("one")]),
    ModelResponse(parts=[ToolCallPart("find", {"a": 1}, tool_call_id="c1")]),
    ModelRequest(parts=[ToolReturnPart("find", "here", tool_call_id="c1")]),
    ModelResponse(parts=[TextPart("1")]),
]


def test_messages_of_langchain_are_found_read_and_made() -> None:
    blocks = from_messages(LANGCHAIN)
    assert [block.kind for block in blocks] == ["system", "user", "tool_use", "tool_result", "text"]
    assert from_messages(to_messages(blocks, "langchain")) == blocks
    assert from_messages(to_messages(blocks, "openai_chat")) == blocks


def test_messages_of_pydantic_ai_are_found_read_and_made() -> None:
    blocks = from_messages(PYDANTIC)
    kinds = [block.kind for block in blocks if block.kind != "unknown"]  # which has what blocks do not hold
    assert kinds == ["user", "tool_use", "tool_result", "text"]
    assert to_messages(blocks, "pydantic_ai") == PYDANTIC


@pytest.mark.parametrize("messages", [LANGCHAIN[:3], PYDANTIC[:2]])
def test_a_call_without_its_result_is_named_by_its_message(messages: list[object]) -> None:
    with pytest.raises(InvalidInputError, match=rf"messages\[{len(messages) - 1}\].*add the message with its result"):
        from_messages(messages)
