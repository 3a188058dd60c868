"""A conversation's system prompt follows that of the engine, with every provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnwise import InProcess, OpenAIEngine, SessionManager
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.memory.conversation.blocks import System
from turnwise.testing import LocalProvider


def chat(provider: LocalProvider) -> Any:
    return OpenAIEngine("m", system="Be kind.", base_url=provider.base_url)


def responses(provider: LocalProvider) -> Any:
    return OpenAIEngine("m", api="responses", system="Be kind.", base_url=provider.base_url)


def anthropic(provider: LocalProvider) -> Any:
    return AnthropicEngine("m", system="Be kind.", base_url=provider.anthropic_url)


def system_of(body: dict[str, Any]) -> Any:
    """Return the system prompt of a request, by any of the APIs."""
    if isinstance(parts := body.get("system"), list):
        return "".join(part["text"] for part in parts)
    return body.get("instructions") or next((m["content"] for m in body["messages"] if m["role"] == "system"), None)


@pytest.mark.parametrize("make_engine", [chat, responses, anthropic])
def test_an_appended_system_prompt_follows_the_engines_and_a_runs_own_comes_last(
    make_engine: Callable[[LocalProvider], Any], tmp_path: Path
) -> None:
    with (
        LocalProvider(reply="Oui.") as provider,
        SessionManager(
            f"sqlite:///{tmp_path}/chats.db", engine=make_engine(provider), placement=InProcess()
        ) as manager,
    ):
        session = manager.open("a", user_id="ann")
        session.run("Hello").wait()
        session.append(System(text="Speak French."))
        session.run("Hello").wait()
        session.append(System(text="Speak German."))
        session.run("Hello", instructions="Be brief.").wait()
        assert [system_of(request.body) for request in provider.requests] == [
            "Be kind.",
            "Be kind.\n\nSpeak French.",
            "Be kind.\n\nSpeak German.\n\nBe brief.",
        ]
