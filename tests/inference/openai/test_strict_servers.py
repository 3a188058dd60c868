"""A whole conversation with each server of `strict_servers.py`, with its profile and without."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from frameworks import strict_servers
from frameworks.strict_servers import STRICT, Answer, StrictServer
from quirks import JSON, QuirkServer
from stored.audit import check_session
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.memory.conversation.blocks import Image
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.in_memory import InMemoryStore

ROOT = Path(__file__).parents[3]
SESSION = "session"
DOWN = (500, JSON, b'{"error": {"message": "the model broke down"}}')
DOT = Image(
    data="iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    media_type="image/png",
)


@tool
def look(at: str, unit: Literal["C"] = "C", span: tuple[int, int] | None = None) -> str:
    """Look at a city."""
    return f"Sun in {at}, 20 {unit}"


def engine(strict: StrictServer, model: str = "local", **settings: Any) -> OpenAIEngine:
    options: dict[str, Any] = {"api": strict.api, "max_retries": 0, **(strict.settings or {}), **settings}
    return OpenAIEngine(model, system="You know the weather.", tools=[look], **options)


def script(strict: StrictServer) -> list[Answer]:
    """Return the server's answers in `converse`, without its refusals."""
    calls, says = strict.calls(), strict.says
    return [DOWN, calls, says("Soleil."), calls, DOWN, says("A dot."), says("Bye.")]


async def converse(strict: StrictServer, chosen: OpenAIEngine) -> None:
    """Hold a whole conversation with a server that answers by `script`.

    The conversation began with another server, whose calls have other ids, and neither thoughts nor signatures.
    """
    before = StrictServer(name="another", provider=None, refusals=(), api=strict.api, ids=("1" * 90, "2" * 90))
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))

    async def ask(run_id: str, *prompts: str | Image) -> str:
        await core.admission.start(list(prompts), run_id=run_id)
        outcome = await core.reads.wait(run_id)

        assert outcome.turn or outcome.run.why
        return outcome.turn.text if outcome.run.state == "completed" and outcome.turn else str(outcome.run.why)

    with QuirkServer(before.calls(), before.says("Both have sun.")) as server_before:
        core = SessionCore(SessionKey(SESSION), store, engine(before, base_url=server_before.base_url))
        assert await ask("begun", "Compare Paris and Rome.") == "Both have sun."
        core.use(chosen, SessionConfig())
        assert "the model broke down" in await ask("failed", "Say it in French.")
        await core.admission.append(["In one word."], "key")
        assert await ask("called", "Now.") == "Soleil."
        assert "the model broke down" in await ask("failed after results", "Look again.")
        pictures: list[str | Image] = [DOT] if strict.takes_images else []
        assert await ask("seen", "And this?", *pictures) == "A dot."
        assert await ask("last", "Thank you.") == "Bye."
        assert await core.ownership.leave()
    await check_session(store, SESSION)


@pytest.mark.parametrize("named", [True, False], ids=["with its profile", "without a profile"])
@pytest.mark.parametrize("strict", STRICT, ids=lambda strict: strict.name)
def test_a_strict_server_accepts_a_whole_conversation(strict: StrictServer, named: bool) -> None:
    with QuirkServer(*script(strict), refuse=strict.judge) as server:
        chosen = engine(strict, base_url=server.base_url, provider=strict.provider if named else None)
        asyncio.run(asyncio.wait_for(converse(strict, chosen), 30))
        refused = [words for _, _, words in server.refused]
        assert len(refused) == len(set(refused))  # what has been learned is not asked for again
        if named:
            strict = replace(strict, refusals=[refusal for refusal in strict.refusals if refusal.is_known])
            assert not any(strict.judge(request) for request in server.requests)


@pytest.mark.parametrize("named", [True, False], ids=["with its profile", "without a profile"])
@pytest.mark.parametrize("strict", STRICT, ids=lambda strict: strict.name)
async def test_a_strict_server_accepts_what_the_session_has_said(strict: StrictServer, named: bool) -> None:
    """First and twice in a row; then a prompt, and a run with instructions instead of one."""
    with QuirkServer(strict.says("Tea?"), strict.says("Now."), refuse=strict.judge) as server:
        store = InMemoryStore()
        await store.create(SessionRecord(session_id=SESSION))
        chosen = engine(strict, base_url=server.base_url, provider=strict.provider if named else None)
        core = SessionCore(SessionKey(SESSION), store, chosen)
        for text in ("Hello.", "Are you there?"):
            await core.admission.say(text, run_id=text)
        await core.admission.start(["Yes."], run_id="asked")
        await core.reads.wait("asked")
        await core.admission.start([], run_id="told", instructions="The tea is ready: say so.")
        for run_id, text in (("asked", "Tea?"), ("told", "Now.")):
            outcome = await core.reads.wait(run_id)
            assert outcome.turn and outcome.turn.text == text, outcome.run.why
        assert await core.ownership.leave()
    await check_session(store, SESSION)


def test_what_the_endpoints_page_leads_to_lists_each_refusal_with_its_source() -> None:
    page = (ROOT / "docs/endpoints.md").read_text(encoding="utf-8")
    assert Path(strict_servers.__file__).relative_to(ROOT).as_posix() in page
    assert all(refusal.source.startswith("https://") for strict in STRICT for refusal in strict.refusals)
