"""Members who come and go while they write, under seeded interleavings.

A failing schedule prints its seed, which replays it: `TURNWISE_SEED=<seed> pytest -k <test>` with this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from scale import share
from schedules import SESSION, World, spread
from stored.audit import check_session
from turnwise.actors.session.acting import Acting, acting_as
from turnwise.errors import NotAllowedError, SessionBusyError, SessionNotFoundError
from turnwise.memory.conversation.events import MemberChanged, PromptAppended
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.stores.search.finding import find_messages
from turnwise.memory.stores.search.query import parse_query
from turnwise.memory.stores.search.records import TextFilter

REFUSED = (SessionNotFoundError, NotAllowedError, SessionBusyError)


async def as_tom(call: Awaitable[Any]) -> Any:
    """Return what a call for Tom returns, or why it is refused."""
    with acting_as(Acting("tom", "member", "write")):
        try:
            return await call
        except REFUSED as error:
            return error


def test_nothing_of_a_member_is_stored_outside_of_the_membership() -> None:
    """A call that waits for the lock while its member is removed is refused, and so is every later one."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()
        core, key = world.core, SessionKey(SESSION)
        stopped: list[str] = []

        async def write() -> None:
            for number in range(6):
                await world.pause()
                if number % 3 == 0:
                    await as_tom(core.admission.append([f"appended {number}"], f"tom-{number}"))
                else:
                    run_id = f"tom-{number}"
                    await as_tom(core.admission.start([run_id], run_id=run_id, if_busy="enqueue"))

        async def stop() -> None:
            for _ in range(3):
                await world.pause()
                for run_id in [run.run_id for run in core.state.open_runs]:
                    was_stopped = await as_tom(core.admission.cancel("by Tom", run_id, 60.0))
                    stopped.extend([run_id] if was_stopped is True else [])

        async def share_and_unshare() -> None:
            for role in ("member", None, "reader", "member", None):
                await world.pause()
                await core.membership.set_member("tom", role)
                if role is None:
                    late = await as_tom(core.admission.append(["late"], "tom-late"))
                    assert isinstance(late, SessionNotFoundError), "it was removed before it asked"

        async def own() -> None:
            for number in range(3):
                await world.pause()
                await core.admission.start([f"ann-{number}"], run_id=f"ann-{number}", if_busy="enqueue")

        await asyncio.gather(write(), write_again(core, world), stop(), share_and_unshare(), own())
        for run in list(core.state.open_runs):
            await core.reads.wait(run.run_id)
        await check_session(world.store.inner, SESSION)
        events = await world.store.inner.events(key)
        roles: dict[int, str | None] = {}
        role = None
        for event in events:
            role = event.role if isinstance(event, MemberChanged) else role
            roles[event.seq] = role
            if isinstance(event, PromptAppended) and str(event.key).startswith("tom"):
                assert role == "member", f"Tom appends as {role} at {event.seq}"
        for run in await world.store.inner.runs(key):
            assert run.author == ("tom" if run.run_id.startswith("tom") else None)
            if run.author:
                assert roles[run.first_seq] == "member", f"Tom starts {run.run_id} as {roles[run.first_seq]}"
        assert not [run_id for run_id in stopped if run_id.startswith("ann")], "a member stops the own runs only"
        assert (await world.store.inner.get(key)).members == {}
        assert not (await world.store.inner.query(member="tom")).items

    assert spread(share(1000, 40), schedule)


async def write_again(core: Any, world: World) -> None:
    """Append more, as another caller of the same member."""
    for number in range(4):
        await world.pause()
        await as_tom(core.admission.append([f"again {number}"], f"tom-again-{number}"))


def test_what_a_member_leaves_behind_goes_on_for_nobody() -> None:
    """The run of a removed member ends, saves its turn and begins the next one, since these are done for nobody."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()
        core = world.core
        await core.membership.set_member("tom", "member")
        for number in range(3):
            await as_tom(core.admission.start([f"tom-{number}"], run_id=f"tom-{number}", if_busy="enqueue"))
        await world.pause()
        await core.membership.set_member("tom", None)
        ends = [(await core.reads.wait(f"tom-{number}")).run for number in range(3)]
        assert not any(run.is_open for run in ends)
        assert not any(run.why and "no session" in run.why for run in ends)
        assert isinstance(await as_tom(core.admission.append(["late"], "late")), SessionNotFoundError)
        await check_session(world.store.inner, SESSION)

    assert spread(share(500, 40), schedule)


def test_a_member_finds_what_is_shared_and_nothing_from_the_removal_on() -> None:
    """A search that begins after a removal has returned finds nothing, nor one whose texts are read after that."""

    async def schedule(seed: int) -> None:
        world = World(seed)
        await world.create()
        core, texts = world.core, TextFilter(query=parse_query("plan"), user_id="tom", shared=True)
        await core.admission.append(["the plan"], "first")
        changes = [False]
        """Whether Tom is a member: an odd number of entries while nothing changes, and the last one says it."""

        async def share_and_unshare() -> None:
            for role in ("member", None, "reader", None, "owner", None):
                await world.pause()
                changes.append(True)
                await core.membership.set_member("tom", role)
                changes.append(role is not None)

        def is_settled() -> bool:
            return len(changes) % 2 == 1

        async def search() -> None:
            for _ in range(12):
                await world.pause()
                before, was_settled, was_member = len(changes), is_settled(), changes[-1]
                hits = await find_messages(world.store, texts)
                if len(changes) == before and was_settled:
                    assert bool(hits) == was_member, f"found {len(hits)} as {was_member}"
                if hits:
                    assert {hit.user_id for hit in hits} == {"default"}

        await asyncio.gather(share_and_unshare(), search(), search())
        assert not await find_messages(world.store, texts)

    assert spread(share(1000, 40), schedule)


async def test_a_member_who_is_removed_while_texts_are_read_finds_nothing() -> None:
    world = World(1)
    await world.create()
    await world.core.admission.append(["the plan"], "first")
    await world.core.membership.set_member("tom", "member")
    texts = TextFilter(query=parse_query("plan"), user_id="tom", shared=True)
    read = world.store.inner.blocks

    async def blocks_after_the_removal(spans: Any) -> list[str]:
        bodies: list[str] = await read(spans)
        await world.core.membership.set_member("tom", None)
        return bodies

    assert len(await find_messages(world.store, texts)) == 1
    assert len(await find_messages(world.store, texts, order="rank")) == 1
    for order in ("newest", "rank"):
        await world.core.membership.set_member("tom", "member")
        world.store.inner.blocks = blocks_after_the_removal
        assert not await find_messages(world.store, texts, order=order)
        world.store.inner.blocks = read
