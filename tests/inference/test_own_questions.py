"""Questions of turnwise's own, for titles, summaries and facts, keep their instructions beside an engine's prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patience import until
from turnwise import InProcess, OpenAIEngine, SessionConfig, SessionManager, Summarize
from turnwise.actors.session.history import titles
from turnwise.adapters.anthropic.engine import AnthropicEngine
from turnwise.engines import SystemPrompt
from turnwise.memories import ExtractiveMemory
from turnwise.strategies import summary_task
from turnwise.testing import LocalProvider
from turnwise.testing.local_provider.assistant import assistant_reply

PIRATE = "You are a pirate."


def of_openai(provider: LocalProvider) -> OpenAIEngine:
    return OpenAIEngine("m", system=PIRATE, base_url=provider.base_url)


def of_middleware(provider: LocalProvider) -> OpenAIEngine:
    return OpenAIEngine("m", middleware=[SystemPrompt(PIRATE)], base_url=provider.base_url)


def of_anthropic(provider: LocalProvider) -> AnthropicEngine:
    return AnthropicEngine("m", system=PIRATE, base_url=provider.anthropic_url)


def system_of(body: dict[str, Any]) -> str:
    """Return the system prompt of a request, by either API."""
    system = body.get("system") or next((m["content"] for m in body["messages"] if m["role"] == "system"), "")
    return system if isinstance(system, str) else "".join(part["text"] for part in system)


@pytest.mark.parametrize("make_engine", [of_openai, of_middleware, of_anthropic])
def test_each_question_has_its_own_instructions_and_each_run_the_engines_prompt(
    make_engine: Callable[[LocalProvider], Any], tmp_path: Path
) -> None:
    with LocalProvider(reply=assistant_reply) as provider:
        engine = make_engine(provider)
        settings: Any = {
            "memory": [ExtractiveMemory(engine, f"sqlite:///{tmp_path}/facts.db")],
            "overflow": Summarize(engine, keep_turns=1),
            "config": SessionConfig(title="auto", max_context_tokens=4000, reserve_output_tokens=200),
        }
        with SessionManager(
            f"sqlite:///{tmp_path}/chats.db", engine=engine, placement=InProcess(), **settings
        ) as manager:
            session = manager.open("a", user_id="ann")
            for prompt in ("I live in Oslo.", *(f"{letter} " * 250 for letter in "abcdefgh")):
                session.run(prompt).wait()
            wanted = {titles.INSTRUCTIONS[:40], summary_task.PROMPT[:40], "facts"}

            def systems() -> set[str]:
                return {system_of(request.body) for request in provider.requests}

            until(lambda: all(any(part in system for system in systems()) for part in wanted))
            assert PIRATE in systems()
            assert not [system for system in systems() if PIRATE in system and system != PIRATE]
