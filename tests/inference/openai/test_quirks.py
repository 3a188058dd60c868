"""Every quirk of `quirks.py`, each followed by a healthy answer in a valid conversation.

As a program, it lists the quirks and their results: `make quirks`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from engine_calls import HEALTHY, Recorder, answer, engine_at, failure, refusal, run, turn
from quirks import HI, JSON, QUIRKS, Quirk, QuirkServer
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.openai.runner import OpenAIRunner
from turnwise.actors.inference.tools.tool import external_tool
from turnwise.errors import ConfigError, ContextOverflowError, EngineError
from turnwise.memory.conversation.blocks import Block, Text, ToolResult, ToolUse, User
from turnwise.memory.conversation.transcript import repair


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: f"{quirk.api}: {quirk.name}")
def test_a_quirk_leads_to_an_answer_or_to_the_servers_message(quirk: Quirk) -> None:
    with QuirkServer((quirk.status, quirk.content_type, quirk.served), HEALTHY[quirk.api]) as server:
        chosen = engine_at(server, api=quirk.api, provider=quirk.provider)
        blocks: Sequence[Block]
        if quirk.error is None:
            blocks, _ = answer(chosen, "Hello")
            assert blocks == quirk.blocks
        else:
            error, context = failure(chosen, "Hello")
            assert re.search(quirk.error, str(error)), error
            assert len(str(error)) < 1000
            assert context.text == quirk.streamed
            blocks = [Text(text=context.text)] if context.text else []
        # The conversation goes on with a healthy server.
        results = [ToolResult(call_id=use.call_id, text="Sun") for use in blocks if isinstance(use, ToolUse)]
        history = [User(text="Hello"), *repair([*blocks, *results], why="it broke off", interrupted=True)]
        again, _ = answer(chosen, *history, User(text="And now?"))
        assert again == HI


@given(
    cut=st.integers(min_value=0, max_value=400),
    quirk=st.sampled_from([quirk for quirk in QUIRKS if quirk.status == 200]),
)
def test_an_answer_cut_anywhere_is_an_error_or_lost_nothing_that_matters(cut: int, quirk: Quirk) -> None:
    served = quirk.served[:cut]
    with QuirkServer((200, quirk.content_type, served)) as server:
        chosen = engine_at(server, api=quirk.api, provider=quirk.provider)
        try:
            blocks, context = answer(chosen, "Hello")
        except EngineError:
            return
        # Only where nothing that was cut off mattered.
        assert [block for block in blocks if isinstance(block, Text)] == [
            block for block in quirk.blocks if isinstance(block, Text)
        ]
        assert context.stop_reason or b"[DONE]" in served


# A conversation that is too long, in the words of one server or another

TOO_LONG = {
    "OpenAI": '{"error": {"message": "Your input exceeds the context window", "code": "context_length_exceeded"}}',
    "vLLM": '{"object": "error", "message": "This model\'s maximum context length is 2048 tokens. However, your request'
    ' has 8 input tokens plus 2045 \'max_tokens\'.", "type": "BadRequestError", "code": 400}',
    "llama.cpp": '{"error": {"code": 400, "message": "the request exceeds the available context size", "type":'
    ' "exceed_context_size_error", "n_prompt_tokens": 14429, "n_ctx": 8192}}',
    "LiteLLM": '{"error": {"message": "litellm.ContextWindowExceededError: AnthropicError - prompt is too long: 212345'
    ' tokens > 200000 maximum", "type": null, "code": "400"}}',
    "Mistral": '{"object": "error", "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum'
    ' context length", "code": 3051}',
    "Gemini": '{"error": {"code": 400, "message": "The input token count (1048580) exceeds the maximum number of tokens'
    ' allowed (1048576).", "status": "INVALID_ARGUMENT"}}',
    "Groq behind LiteLLM": '{"error": {"message": "litellm.BadRequestError: GroqException - {\\"error\\":'
    ' {\\"message\\": \\"Please reduce the length\\", \\"code\\": \\"context_length_exceeded\\"}}", "code": "400"}}',
    "Bedrock": '{"message": "Input is too long for requested model."}',
}


@pytest.mark.parametrize(
    ("server_name", "status"),
    # With status 200, the object of Bedrock does not say that it is an error.
    [(name, status) for name in TOO_LONG for status in (400, 413, 422, 200) if (name, status) != ("Bedrock", 200)],
)
def test_a_refusal_of_a_too_long_conversation_is_recognized_by_its_message(server_name: str, status: int) -> None:
    with QuirkServer((status, JSON, TOO_LONG[server_name].encode())) as server:
        error, _ = failure(engine_at(server), "Hello")
    assert isinstance(error, ContextOverflowError)
    assert "pass an overflow strategy" in str(error)


# Requests that a server refuses at first


@pytest.mark.parametrize(
    ("refused", "settings", "first", "then"),
    [
        (refusal("Extra inputs are not permitted: stream_options", 422), {}, {"stream_options"}, set[str]()),
        (
            refusal("body.max_completion_tokens: Extra inputs are not permitted", 422),
            {"max_output_tokens": 9},
            {"max_completion_tokens", "stream_options"},
            {"max_tokens", "stream_options"},
        ),
        (
            refusal("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
            {"max_output_tokens": 9, "provider": "ollama"},
            {"max_tokens", "stream_options"},
            {"max_completion_tokens", "stream_options"},
        ),
    ],
)
def test_a_refused_default_field_is_left_out_from_then_on(
    refused: tuple[int, str, bytes], settings: dict[str, Any], first: set[str], then: set[str]
) -> None:
    with QuirkServer(refused, HEALTHY["chat"]) as server:
        chosen = engine_at(server, **settings)
        for _ in range(2):
            assert answer(chosen, "Hello")[0] == HI
        fields = [set(request) - {"model", "messages", "stream"} for request in server.requests]
        assert fields == [first, then, then]  # it is remembered


@pytest.mark.parametrize("message", ["Encrypted content is not supported with this model.", "Unknown field: include"])
def test_encrypted_reasoning_is_not_requested_again_from_a_model_without_it(message: str) -> None:
    with QuirkServer(refusal(message), HEALTHY["responses"]) as server:
        chosen = engine_at(server, api="responses")
        for _ in range(2):
            assert answer(chosen, "Hello")[0] == HI
        assert ["include" in request for request in server.requests] == [True, False, False]


@pytest.mark.parametrize("name", ["$schema", "const", "format"])
def test_a_schema_keyword_that_gemini_refuses_is_left_out_of_tools(name: str) -> None:
    schema = {"type": "object", "properties": {"const": {"type": "string", name: "date"}}}
    words = f"Unknown name \"{name}\" at 'tools[0].function_declarations[0].parameters': Cannot find field."
    look_tool = external_tool("look", "Looks.", schema)
    with QuirkServer(refusal(words), HEALTHY["chat"]) as server:

        async def use(runner: OpenAIRunner, context: Recorder) -> None:
            for _ in range(2):
                assert await runner.run(turn("Hello"), context) == HI

        run(engine_at(server), use, [look_tool.definition])
        properties = [request["tools"][0]["function"]["parameters"]["properties"] for request in server.requests]
        assert [name in parameter["const"] for parameter in properties] == [True, False, False]
        assert properties[1]["const"]["type"] == "string"  # a property of that name stays


def test_a_refused_field_of_extra_is_not_left_out() -> None:
    with QuirkServer(refusal("unknown field seed"), HEALTHY["chat"]) as server:
        error, _ = failure(engine_at(server, extra={"seed": 7}), "Hello")
        assert "unknown field seed" in str(error)
        assert len(server.requests) == 1


def test_a_server_that_refuses_everything_gets_a_limited_number_of_requests() -> None:
    with QuirkServer(refusal("stream_options max_tokens max_completion_tokens include")) as server:
        failure(engine_at(server, max_output_tokens=9), "Hello")
        assert len(server.requests) <= 4


@pytest.mark.parametrize("field", ["n", "extra_headers", "extra_query", "extra_body", "timeout"])
def test_an_argument_that_is_not_a_field_of_the_body_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        OpenAIEngine("local", extra={field: 2})


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="deepseek"):
        OpenAIEngine("local", provider="deepseak")


# As a program


def outcome(quirk: Quirk) -> str:
    """Return the result of a quirk in one line."""
    with QuirkServer((quirk.status, quirk.content_type, quirk.served)) as server:
        try:
            blocks, _ = answer(engine_at(server, api=quirk.api, provider=quirk.provider), "Hello")
        except EngineError as error:
            is_right = quirk.error is not None and re.search(quirk.error, str(error))
            return f"{type(error).__name__ if is_right else 'WRONG'}: {str(error)[:160]!r}"
    return "answer" if blocks == quirk.blocks else f"WRONG: {blocks}"


def main() -> None:
    """List the quirks with their results, and count the results."""
    outcomes = [outcome(quirk) for quirk in QUIRKS]
    for quirk, came in zip(QUIRKS, outcomes, strict=True):
        print(f"{quirk.server} | {quirk.api} | {quirk.name} | {came}")
    kinds = Counter(came.partition(":")[0] for came in outcomes)
    print(f"{len(QUIRKS)} tried:", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))


if __name__ == "__main__":
    main()
