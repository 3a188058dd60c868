"""The listings of `ballerina-memory-proposal.md`: the HR chatbot, its memory blocks and strategies, with turnwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memories.extraction_models import all_stated
from turnwise import (
    AsyncSessionManager,
    ExtractiveMemory,
    FlushToMemory,
    InProcess,
    MemoryConfig,
    OpenAIEngine,
    SessionConfig,
    SessionManager,
    StaticMemory,
    Summarize,
    Trim,
    VectorMemory,
)
from turnwise.engines import NoAnswer
from turnwise.errors import InvalidInputError, ReadOnlyMemoryError
from turnwise.memories import AsyncChatMemory, ChatMemory, Scope
from turnwise.strategies import DeleteOldest, OverflowStrategy
from turnwise.testing import LocalProvider, Message
from turnwise.testing.embedding import HashEmbedding
from turnwise.testing.local_provider.replies import texts_of

NAMESPACE = "seeds-ballerina"
FACTS = [
    {"id": "fact1", "content": "Remote work: 3 days a week with the manager's approval."},
    {"id": "fact2", "content": "International work: at most 2 weeks a year, with approval 30 days in advance."},
]
SARAH = (
    "I am Sarah from the Marketing team. What is our remote work policy?",
    "I work here for 2 years. How do I apply?",
    "What if my manager initially says no?",
)


def answering(messages: list[Message]) -> str:
    """Play all models: extract what begins with "I am" or "I work"; otherwise repeat the recalled items."""
    prompt = [texts_of(message)[-1] for message in messages if message["role"] == "user"][-1]
    if "Answer with the facts now" not in prompt:
        return all_stated(prompt) or "Submit Form HR-101."
    rows = [json.loads(line) for line in prompt.splitlines() if line.startswith("{")]
    sentences = [
        row["user"].partition(".")[0] + "." for row in rows if row.get("user", "").startswith(("I am", "I work"))
    ]
    facts = [line.replace("I am", "The user is").replace("I work", "The user works") for line in sentences]
    pairs = zip(facts, sentences, strict=True)
    more: dict[str, Any] = {"type": "facts", "topic": None, "name": None, "aliases": [], "action": "add", "of": []}
    return json.dumps({"facts": [{"text": text, "evidence": line, **more} for text, line in pairs]})


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionManager]:
    """The developer experience: three blocks, and a strategy that flushes to them; see section 5."""
    folder = tmp_path_factory.mktemp("ballerina")
    with LocalProvider(reply=answering) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url)
        static_block = StaticMemory(FACTS, name="static_memory")
        extractive_block = ExtractiveMemory(
            engine, folder / "facts.db", name="extractive_memory", max_tokens=2000, facts_prompt="Extract facts."
        )
        vector_block = VectorMemory(folder / "said.db", embedding=HashEmbedding(64), name="vector_memory")
        with SessionManager(
            f"sqlite:///{folder}/chats.db",
            engine={"hr": engine, "own loop": NoAnswer()},
            memory=[static_block, extractive_block, vector_block],
            overflow=FlushToMemory(max_ratio=0.5, trigger_ratio=0.8),  # the manager's memories
            config=SessionConfig(max_context_tokens=100_000, memory=MemoryConfig(timeout_s=60.0)),
            namespace=NAMESPACE,
            placement=InProcess(),
        ) as session_manager:
            yield session_manager


def test_the_hr_chatbot_holds_short_term_and_long_term_memory_together(manager: SessionManager) -> None:
    """Sections 4.2 and 6: what each block has, apart, and only for its user."""
    chat = manager.open("hr", user_id="sarah")
    memory = ChatMemory(chat)
    empty = memory.get()
    assert empty.messages == () and empty.recalled.static == empty.recalled.extracted == empty.recalled.vector == ()
    for prompt in SARAH:
        chat.run(prompt).wait(60)
    assert chat.memory.wait(60)

    content = memory.get("Which team is Sarah from, and what is the remote work policy?")
    assert [block.kind for block in content.messages] == ["user", "text"] * 3
    assert {(item.id, item.memory) for item in content.recalled.static} == {
        ("fact1", "static_memory"),
        ("fact2", "static_memory"),
    }
    assert "The user is Sarah from the Marketing team." in [item.text for item in content.recalled.extracted]
    (item, *_) = content.recalled.vector
    assert SARAH[0] in item.text and (item.memory, bool(item.score), bool(item.words)) == ("vector_memory", True, True)
    assert not content.recalled.failed

    recalled = ChatMemory(manager.open(user_id="tom")).get("Which team is Sarah from?").recalled
    assert recalled.static and not recalled.extracted and not recalled.vector


def test_messages_are_stored_and_deleted_by_an_orchestrator_of_ones_own(manager: SessionManager) -> None:
    """The interface of section 7: get, update, delete."""
    memory = ChatMemory(manager.open("own-loop", user_id="ann"))
    memory.update("What are the eligibility criteria?")
    memory.update(
        {"role": "assistant", "content": "Six months with the company."}, {"role": "user", "content": "Thanks"}
    )
    texts = [getattr(block, "text", "") for block in memory.get().messages]
    assert texts == ["What are the eligibility criteria?", "Six months with the company.", "Thanks"]
    wrong: list[Any] = [
        {"role": "tool", "content": "x"},
        {"role": "user"},
        {"content": "x"},
        {"role": ["user"], "content": "x"},
    ]
    for message in wrong:
        with pytest.raises(InvalidInputError, match="messages"):
            memory.update(message)
    memory.delete()
    assert memory.get().messages == ()
    memory.update("Hello again.")
    assert [getattr(block, "text", "") for block in memory.get().messages] == ["Hello again."]


def test_turns_of_an_orchestrator_of_ones_own_go_to_long_term_memory(manager: SessionManager) -> None:
    memory = ChatMemory(manager.open("own-turns", user_id="eve", engine="own loop"), ends_turns=True)
    waiting = memory.update("I work as a nurse in the Marketing department.")
    ended = memory.update({"role": "assistant", "content": "Noted, Eve."})
    assert (waiting.index, ended.index) == (0, 0) and [block.kind for block in ended.blocks] == ["user", "text"]
    memory.update("What did I say?")
    assert memory.session.memory.wait(60)
    content = memory.get("Where do I work?")
    assert [block.kind for block in content.messages] == ["user", "text", "user"]
    assert "The user works as a nurse in the Marketing department." in [
        item.text for item in content.recalled.extracted
    ]
    assert memory.delete().items and not memory.get("Where do I work?").recalled.extracted


def test_the_asynchronous_family_has_the_same_verbs(tmp_path: Path) -> None:
    public = [{name for name in dir(cls) if not name.startswith("_")} for cls in (ChatMemory, AsyncChatMemory)]
    assert public[0] == public[1] == {"get", "update", "delete"}

    async def use() -> None:
        async with AsyncSessionManager(
            f"sqlite:///{tmp_path}/chats.db", engine=NoAnswer(), namespace=NAMESPACE, placement=InProcess()
        ) as manager:
            memory = AsyncChatMemory(await manager.open("chat"), ends_turns=True)
            await memory.update("Hi, I'm Sarah.", {"role": "assistant", "content": "Hello Sarah!"})
            content = await memory.get("Who am I?")
            assert [block.kind for block in content.messages] == ["user", "text"]
            assert content.recalled.extracted == () and not content.recalled.failed
            await memory.delete()

    asyncio.run(use())


def test_the_static_block_refuses_changes() -> None:
    memory, scope = StaticMemory(FACTS), Scope(user_id="sarah")
    for call in (memory.remember(scope, []), memory.update(scope, "fact1", "x"), memory.forget(scope)):
        with pytest.raises(ReadOnlyMemoryError):
            asyncio.run(call)


def test_each_overflow_configuration_has_its_strategy(tmp_path: Path) -> None:
    """Section 7: STMSummarizeConfiguration, TrimLastMessagesConfiguration, FlushToLTMConfiguration."""
    model = OpenAIEngine("gpt-5-mini")
    summarize = Summarize(
        model, max_summary_tokens=500, keep_turns=2, prompt="Summarize the key facts and user intent."
    )
    assert (summarize.prompt, summarize.otherwise) == ("Summarize the key facts and user intent.", Trim())
    assert isinstance(DeleteOldest(), OverflowStrategy)
    assert FlushToMemory([VectorMemory(tmp_path / "said.db")]).max_ratio == 0.5
