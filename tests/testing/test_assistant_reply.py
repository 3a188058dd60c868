"""The stand-in for a model with memory: what it remembers of later statements."""

from __future__ import annotations

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.items.in_memory import InMemoryItems
from turnwise.testing.local_provider.assistant import assistant_reply
from turnwise.testing.local_provider.server import LocalProvider


def test_a_later_fact_replaces_only_what_cannot_be_true_beside_it() -> None:
    with LocalProvider(reply=assistant_reply) as provider:
        engine = OpenAIEngine("local", base_url=provider.base_url)
        facts = ExtractiveMemory(engine, InMemoryItems())
        with SessionManager("memory://likes", engine=engine, memory=[facts], placement=InProcess()) as manager:
            for prompt in ("I live in Oslo.", "I play the cello.", "I live in Rome.", "I play chess.", "I play chess."):
                chat = manager.open(user_id="ada")
                chat.run(prompt).wait()
                assert chat.memory.wait()
            texts = [item.text for item in manager.memory(user_id="ada").list()]
    assert sorted(texts) == ["I live in Rome.", "I play chess.", "I play the cello."]
