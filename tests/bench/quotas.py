"""Measures quotas: what they add to a turn, and by how much one of tokens is exceeded by 16 hosts at once."""

import asyncio
import random
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from harness import Samples, Table
from servers.postgres_server import PostgresServer
from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionConfig, tool
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.quota_book import QuotaBook
from turnwise.memory.conversation.events import ModelCallEnded
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.stores.quotas import quota_uses
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.stores import Quota
from turnwise.testing import ScriptedEngine

HOSTS = 16

ONE = [Quota(user_id="*", runs=10**6, per="month")]
FIVE = [
    *ONE,
    Quota(tokens=10**9, per="day"),
    Quota(tenant="*", tokens=10**9, per="day"),
    Quota(tenant="*", runs=10**6, per="minute"),
    Quota(user_id="*", agent="*", runs=10**6, per="day"),
]

GOALS: dict[str, tuple[Sequence[Quota], float]] = {"one quota": (ONE, 1.1), "five quotas": (FIVE, 1.25)}
"""The most that a turn takes with quotas, compared with one without."""

MOST = 4000
"""The tokens that the hosts may use together."""


async def _turns(table: Table, urls: Sequence[str], name: str, rounds: int) -> None:
    """Measure turns of sessions of three stores, in a random order: without quotas, with one, and with five."""
    dice = random.Random(5)
    names = ["no quota", *GOALS]
    samples = {title: Samples() for title in names}
    async with AsyncExitStack() as stack:
        chats = {}
        for title, url in zip(names, urls, strict=True):
            manager = AsyncSessionManager(url, engine=EchoEngine(), placement=InProcess(), namespace=title)
            await stack.enter_async_context(manager)
            await manager.set_tenant("ann", "acme")
            for quota in GOALS[title][0] if title in GOALS else ():
                await manager.set_quota(quota)
            chats[title] = await manager.open("chat", user_id="ann", agent="travel")
            for _ in range(5):
                await (await chats[title].run("hello")).wait()
        for _ in range(rounds):
            for title in dice.sample(names, len(names)):
                with samples[title].timed():
                    await (await chats[title].run("We take the night train to Paris.")).wait()
    table.line(f"turn in process without quotas, {name}", samples["no quota"])
    for title, (_, goal) in GOALS.items():
        ratio = samples[title].median / samples["no quota"].median
        table.judge(f"  with {title}, to that", ratio, goal, "x", samples[title])


async def _overshoot(table: Table, url: str, most: int) -> None:
    """Use up a quota of tokens in many hosts at once, by runs with many calls of a model."""
    dice = random.Random(1)

    async def dig() -> str:
        """Dig for a while."""
        await asyncio.sleep(dice.random() / 20)
        return "nothing but sand, and below it more sand"

    async def use_up(store: SQLStore, user_id: str) -> None:
        """Run a prompt in a session of a host of its own, until the quota stops the run."""
        key = SessionKey("chat", user_id)
        await store.create(SessionRecord(session_id=key.session_id, user_id=user_id))
        core = SessionCore(key, store, engine, SessionConfig(), quotas=QuotaBook(store))
        await core.admission.start(["Find the treasure."], run_id=user_id)
        outcome = await core.reads.wait(user_id)
        assert outcome.run.code == "quota", f"the run is {outcome.run.state}: raise the calls of a run"

    engine = ScriptedEngine([[("dig", {})]] * most, tools=[tool(dig)])
    users = [f"user-{number}" for number in range(HOSTS)]
    stores = [SQLStore(url, connections=2) for _ in users]
    await stores[0].set_quota(Quota(tokens=most, per="month"))
    await asyncio.gather(*(use_up(store, user_id) for store, user_id in zip(stores, users, strict=True)))
    (use,) = await quota_uses(stores[0], None, None)
    events = [event for user in users for event in await stores[0].events(SessionKey("chat", user), limit=10_000)]
    for store in stores:
        await store.close()
    calls = [event.usage for event in events if isinstance(event, ModelCallEnded) and event.usage]
    largest = max(usage.input_tokens + usage.output_tokens for usage in calls)
    over = (use.used or 0) - most
    title = f"tokens over a quota of {most:,}, {HOSTS} hosts at once"
    table.line(title, result=f"{over:,.0f}; one call of each, the bound, takes {HOSTS * largest:,} at most")
    table.judge("  to that bound", over / (HOSTS * largest), 1.0)


def measure(table: Table, *, rounds: int, tokens: int = MOST) -> None:
    """Measure and print all of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-stores-")))
        folder.chmod(0o755)  # the server of PostgreSQL may run under a user of its own
        postgres = PostgresServer(folder)
        stack.callback(postgres.stop, "immediate")
        kinds = [f"sqlite:///{folder}/{number}.db" for number in range(3)]
        asyncio.run(_turns(table, kinds, "SQLite", rounds))
        asyncio.run(_turns(table, [postgres.url() for _ in range(3)], "PostgreSQL", rounds))
        asyncio.run(_overshoot(table, postgres.url(), tokens))
