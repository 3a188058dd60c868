"""Which engine answers a message: the sender's, in a session that has none of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from processes.packed_hosts import Hosting
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.wire import EngineWanted
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.memory.conversation.blocks import AnyBlock, Text
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.in_memory import InMemoryStore

pytestmark = pytest.mark.virtual_time

ENGINES = ("first", "second", "third")
"""The engines that the host has; the first one is its own."""


class Named:
    """Answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build(self, session: SessionView) -> Named:
        return self

    async def run(self, turn: Turn, context: RunContext) -> Sequence[AnyBlock]:
        return [Text(text=self.name)]


async def hosting(overrides: dict[SessionKey, EngineOverride] | None = None) -> Hosting:
    """Return a host with sessions `sender`, `addressee` and `other`."""
    others = {name: Named(name) for name in ENGINES[1:]}
    host = Hosting(InMemoryStore(), Named("first"), Packed(hosts=1), other_engines=others, overrides=overrides)
    await host.create("sender", "addressee", "other")
    return host


async def send(host: Hosting, engine_id: str) -> list[str]:
    """Send a message by a session that a manager uses with this engine; return the addressee's answers then."""
    message = await host.ask("sender", verbs.send("addressee", "hello", f"from {engine_id}"), engine_id)
    assert message.engine_id == engine_id
    run_id = await host.ask("addressee", verbs.deliver(message), message.engine_id)
    await host.ask("addressee", verbs.wait(None, run_id, ()))
    turns = await host.store.turns(SessionKey("addressee"))
    return [text for turn in turns for text in await host.store.blocks(turn.output)]


async def test_a_session_without_an_engine_of_its_own_gets_that_of_the_first_sender() -> None:
    host = await hosting()
    (answer,) = await send(host, "second")
    assert "second" in answer
    assert host.overrides == {
        SessionKey("addressee"): EngineOverride("second"),
        SessionKey("sender"): EngineOverride("second"),
    }
    _, answer = await send(host, "third")
    assert "second" in answer, "it has an engine by now"


async def test_a_session_that_a_manager_uses_keeps_its_engine() -> None:
    host = await hosting()
    await host.run("addressee", "hi", "own", engine_id="first")
    _, answer = await send(host, "second")
    assert "first" in answer


async def test_a_session_whose_engine_is_noted_keeps_it() -> None:
    host = await hosting({SessionKey("addressee"): EngineOverride("third")})
    (answer,) = await send(host, "second")
    assert "third" in answer


async def test_an_engine_that_the_process_lacks_is_asked_for_and_a_message_without_one_is_answered_by_its_own() -> None:
    host = await hosting()
    message = await host.ask("sender", verbs.send("addressee", "hello", "message"), "second")
    deliver = verbs.deliver(message)
    assert isinstance(await host.ask("addressee", deliver, "unknown"), EngineWanted)
    run_id = await host.ask("addressee", deliver)
    await host.ask("addressee", verbs.wait(None, run_id, ()))
    (turn,) = await host.store.turns(SessionKey("addressee"))
    assert "first" in (await host.store.blocks(turn.output))[0]
