"""What is due while a quota is used up comes in the quota's next period: scheduled runs, and agents that runs call."""

from __future__ import annotations

import asyncio

import pytest

from dispatching import Sessions, Supervised
from scale import of_cases
from teams import Team, asks
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.quotas.records import Quota
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("quiet")

QUOTA = Quota(runs=1, per="minute")


def a_prompt(key: str) -> Delivery:
    """Return a scheduled prompt that is due at once."""
    payload = run_payload([encode(User(text=key))], {})
    return Delivery(
        delivery_id=f"id-{key}", session_id="s", key=key, payload=payload, occurs_at=0.0, due_at=0.0, if_busy="enqueue"
    )


@pytest.mark.by_turns
def test_scheduled_runs_are_put_off_until_the_quota_begins_anew() -> None:
    """Each begins once, in a minute of its own, whatever fails and whoever dies."""

    async def life(faults: Faults) -> None:
        store = InMemoryStore(clock=asyncio.get_running_loop().time)
        await store.set_quota(QUOTA)
        await store.create(SessionRecord(session_id="s"))
        for key in "abc":
            await store.add_delivery(a_prompt(key))
        config = SessionConfig(cancel_grace_s=0.1, idle_s=1e9, on_lost="resume", max_resumes=9)
        engine = ScriptedEngine(["an answer"] * 99)
        sessions = Sessions(faults, store, has_quotas=True, engine=engine, config=config)

        async def is_done() -> bool:
            await sessions.come_back()
            runs = await store.runs(SessionKey("s"))
            return len(runs) == 3 and not any(run.is_open for run in runs)

        await Supervised(faults, store, sessions.deliver).run_until(is_done)
        runs = await store.runs(SessionKey("s"))
        minutes = [run.created_at // 60 for run in runs]
        assert len(set(minutes)) == 3, minutes
        assert not await store.deliveries()
        await sessions.audit()

    assert exhaust(life, kinds=["error", "unanswered", "crash"], **of_cases()).total() > 30


@pytest.mark.virtual_time
async def test_agents_are_runs_too_and_begin_when_the_quota_begins_anew() -> None:
    team = Team([asks("a", "b"), "done"])
    team.settings["has_quotas"] = True
    team.store = InMemoryStore(clock=asyncio.get_running_loop().time)
    team.worlds.clear()
    team.lead = team.of("lead")
    await team.store.set_quota(QUOTA)
    await team.begin()
    await team.hand_over(team.has_ended)
    assert await team.results() == [("about a", False), ("about b", False)]
    minutes = [run.created_at // 60 for run in await team.runs()]
    assert len(minutes) == len(set(minutes)) == 3, minutes
