"""Prompts in a row, such as one whose run failed and the next, are apart in the requests of each provider."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, Literal

import pytest

from frameworks.strict_servers import StrictServer
from quirks import JSON, QuirkServer
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.blocks import Block, Image, Recalled, Summary, ToolResult, ToolUse, User
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.providers import anthropic, openai_chat, openai_responses
from turnwise.memory.providers.endpoints import OPENAI, lessons_of, taught
from turnwise.memory.providers.requests import encode
from turnwise.memory.stores.in_memory import InMemoryStore

CAT = Image(url="https://example.org/cat.png")
ALTERNATING = "Conversation roles must alternate user/assistant/user/assistant/..."


def texts(message: dict[str, Any]) -> list[str]:
    """Return the texts of a message, in any of the formats; a picture is `[picture]`."""
    content = message["content"]
    parts = [{"text": content}] if isinstance(content, str) else content
    return [part.get("text", "[picture]") for part in parts]


ROW: list[Block] = [
    Summary(text="They met.", of=(("1", 0, 9),)),
    User(text="Refused."),
    User(text="Failed."),
    CAT,
    Recalled(text="Likes tea."),
    User(text="Now."),
]
APART = [
    ["[summary of the conversation so far]\nThey met.", "Refused."],
    ["Failed.", "[picture]"],
    ["Likes tea.", "Now."],
]


@pytest.mark.parametrize("provider", ["chat", "responses", "anthropic", "bedrock"])
def test_each_prompt_stays_apart(provider: Literal["chat", "responses", "anthropic", "bedrock"]) -> None:
    blocks = [block for block in ROW if provider != "bedrock" or not isinstance(block, Image)]
    request = encode(blocks, provider=provider)
    sent = [texts(message) for message in request["input" if provider == "responses" else "messages"]]
    expected = [[text for text in prompt if text != "[picture]" or provider != "bedrock"] for prompt in APART]
    if provider in ("anthropic", "bedrock"):  # roles alternate, and each text is a part
        expected = [[text for prompt in expected for text in prompt]]
    else:  # texts of one prompt are one
        expected = [["\n\n".join(prompt)] if "[picture]" not in prompt else prompt for prompt in expected]
    assert sent == expected


def test_a_prompt_behind_results_stays_apart_from_their_pictures() -> None:
    called: list[Block] = [User(text="Look."), ToolUse(call_id="a", name="look")]
    shown = ToolResult(call_id="a", text="Seen:", blocks=(Image(data="aGk=", media_type="image/png"),))
    messages = openai_chat.encode([*called, shown, User(text="Refused."), User(text="Now.")])
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "user", "user"]
    assert [texts(message) for message in messages[-2:]] == [["Refused."], ["Now."]]
    items = openai_responses.encode([*called, shown, User(text="Refused."), User(text="Now.")])[1]
    assert [texts(item) for item in items[-2:]] == [["Refused."], ["Now."]]
    (results,) = anthropic.encode([*called, shown, User(text="Refused."), User(text="Now.")])[1][2:]
    assert texts(results)[1:] == ["Refused.", "Now."]


@pytest.mark.parametrize(
    "words",
    [
        ALTERNATING,
        'messages: roles must alternate between "user" and "assistant"',
        "After the (optional) system message(s), user and assistant roles should be alternating.",
        "After the (optional) system message(s), user or tool message(s) should alternate with assistant message(s).",
    ],
)
def test_prompts_are_one_message_for_a_server_whose_roles_alternate(words: str) -> None:
    profile = taught(OPENAI, lessons_of(words))
    (message,) = openai_chat.encode([User(text="Refused."), User(text="Now.")], profile)
    assert message["content"] == "Refused.\n\nNow."


def refuse_a_row(body: dict[str, Any]) -> tuple[int, str, bytes] | None:
    """Refuse messages of the user in a row, as chat templates do."""
    roles = [message.get("role") for message in body.get("messages") or body["input"]]
    in_a_row = any(first == two == "user" for first, two in pairwise(roles))
    return (400, JSON, json.dumps({"error": {"message": ALTERNATING}}).encode()) if in_a_row else None


@pytest.mark.parametrize("is_alternating", [False, True], ids=["any order", "alternating"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_engine_sends_prompts_of_failed_runs_and_appended_ones_apart(
    api: Literal["chat", "responses"], is_alternating: bool
) -> None:
    async def converse(base_url: str) -> str:
        store = InMemoryStore()
        await store.create(SessionRecord(session_id="s"))
        core = SessionCore(SessionKey("s"), store, OpenAIEngine("m", api=api, base_url=base_url, max_retries=0))
        await core.admission.start(["Failed."], run_id="a")
        failed = await core.reads.wait("a")
        assert failed.run.state == "failed"
        await core.admission.append(["Appended."], "key")
        await core.admission.start(["Now."], run_id="b")
        outcome = await core.reads.wait("b")
        assert await core.ownership.leave()
        assert outcome.turn
        return outcome.turn.text

    says = StrictServer(name="any", provider=None, refusals=(), api=api).says("Yes.")
    down = (500, JSON, b'{"error": {"message": "down"}}')
    with QuirkServer(down, says, refuse=refuse_a_row if is_alternating else None) as server:
        assert asyncio.run(asyncio.wait_for(converse(server.base_url), 30)) == "Yes."
        sent = [texts(message) for message in server.requests[-1]["input" if api == "responses" else "messages"]]
    prompts = ["Failed.", "Appended.", "Now."]
    assert sent == ([["\n\n".join(prompts)]] if is_alternating else [[prompt] for prompt in prompts])
