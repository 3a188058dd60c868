"""Laws of `SessionStore` about activations and commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from turnwise.errors import DuplicateKeyError, RunNotFoundError, SessionFencedError, SessionNotFoundError, StoreError
from turnwise.memory.conversation.runs import RunState
from turnwise.memory.conversation.sessions import Inherited, SessionKey
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnStatus
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    NESTED,
    Owner,
    a_run,
    a_session,
    a_turn,
    an_event,
    eventful,
    held,
    of_everything,
    own,
    state_after,
    state_of,
    unchanged,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


@_law
async def check_an_activation_returns_the_state_of_the_session(store: SessionStore) -> None:
    """It returns the raised epoch, the last turn that has ended, and the open turns and runs in order."""
    await store.create(a_session())
    activation = await store.activate(SessionKey("s"))
    equal(activation.session.epoch, 1, "the epoch of the first activation")
    equal(
        (activation.head, activation.open_turns, activation.open_runs),
        (None, (), ()),
        "the turns and runs of a new session",
    )
    owner = Owner(store, activation.session)
    states: list[RunState] = ["awaiting_approval", "running", "queued"]
    statuses: list[TurnStatus] = ["completed", "failed", "running", "running", "queued", "pending"]
    turns = [a_turn(index, status=status) for index, status in enumerate(statuses)]
    runs = [a_run(f"r{9 - index}", index, state) for index, state in enumerate(states, 2)]
    for run in (a_run("done", 0, "completed"), a_run("bad", 1, "failed"), runs[2], runs[0], runs[1]):
        await owner.commit(new_run=run)
    await owner.commit(turns=turns[::-1])
    activation = await store.activate(SessionKey("s"))
    equal(
        activation.session.revision > owner.session.revision + 1,
        True,
        "whether an activation raises the revision by more",
    )
    expected = replace(owner.session, epoch=2, revision=activation.session.revision)
    equal(activation.session, expected, "the session of the second activation")
    equal(await store.get(SessionKey("s")), activation.session, "the session after it")
    equal(activation.head, turns[1], "the last turn that has ended")
    equal(activation.open_turns, tuple(turns[2:]), "open turns")
    equal(activation.open_runs, tuple(runs), "open runs")
    for ended in ("completed", "cancelled", "failed", "interrupted"):
        owner = Owner(store, activation.session)
        await owner.commit(turns=[a_turn(9, status=ended)], runs=[replace(runs[0], state=ended)])
        activation = await store.activate(SessionKey("s"))
        equal(
            (activation.head, activation.open_runs),
            (a_turn(9, status=ended), tuple(runs[1:])),
            f"the state after a run was {ended}",
        )


@_law
async def check_epochs_count_up_by_one(store: SessionStore, other: SessionStore) -> None:
    """Also when many activate at once. Nothing but an activation raises the epoch."""
    await store.create(a_session())
    activations = await asyncio.gather(*((store, other)[index % 2].activate(SessionKey("s")) for index in range(10)))
    epochs = sorted(activation.session.epoch for activation in activations)
    equal(epochs, list(range(1, 11)), "epochs of ten activations")
    last = Owner(store, max((activation.session for activation in activations), key=lambda session: session.epoch))
    await store.commit(SessionKey("s"), last.session.epoch, last.prepare(session=replace(last.session, epoch=7)))
    equal((await store.get(SessionKey("s"))).epoch, last.session.epoch, "the epoch after a commit")


@_law
async def check_an_activation_with_a_revision_takes_a_session_from_nobody(
    store: SessionStore, other: SessionStore
) -> None:
    """It compares and activates in one step, and changes nothing but epoch and revision."""
    owner = await own(store)
    await owner.commit("x")
    before = await store.get(SessionKey("s"))
    activated = (await other.activate(SessionKey("s"), revision=before.revision, jump=7)).session
    equal(activated, replace(before, epoch=2, revision=before.revision + 7), "the activated session")
    for revision in (0, before.revision, activated.revision + 1):
        await refuses(
            SessionFencedError, store.activate(SessionKey("s"), revision=revision), f"an activation of {revision}"
        )
    equal(await store.get(SessionKey("s")), activated, "the session after refused activations")
    await refuses(SessionNotFoundError, store.activate(SessionKey("none"), revision=1), "an activation of no session")
    outcomes = await asyncio.gather(
        *((store, other)[index % 2].activate(SessionKey("s"), revision=activated.revision) for index in range(10)),
        return_exceptions=True,
    )
    owners = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    is_fenced = [isinstance(outcome, SessionFencedError) for outcome in outcomes]
    equal((len(owners), sum(is_fenced)), (1, 9), "owners and refusals of ten activations at once")
    equal(await store.get(SessionKey("s")), owners[0].session, "the session of the one that was first")


@_law
async def check_a_commit_is_stored_whole(store: SessionStore) -> None:
    """All its parts can be read when the call returns. What it does not name stays."""
    owner = await eventful(store)
    commit = of_everything(owner)
    await store.commit(SessionKey("s"), 1, commit)
    equal(await state_of(store, "s"), state_after(commit), "the session")
    equal(await store.run("r9"), commit.new_run, "the run by its id")
    equal(await store.run_of_key(SessionKey("s"), "k9"), commit.new_run, "the run by its key")
    equal(await store.event_of_key(SessionKey("s"), "e9"), commit.events[1], "the event by its key")


@_law
async def check_a_commit_does_not_change_fields_of_the_creation(store: SessionStore) -> None:
    """The agent, time of creation, parent and log of a session never change."""
    owner = await own(
        store,
        user_id="u",
        agent="a",
        created_at=1.0,
        parent="p#1",
        called_by="c",
        inherited=Inherited(depth=2, budget=NESTED, prefix_key="k"),
    )
    changed = replace(
        owner.session,
        agent=None,
        created_at=2.0,
        parent=None,
        called_by=None,
        inherited=Inherited(),
        updated_at=5.0,
    )
    await store.commit(SessionKey("s", "u"), 1, owner.prepare(session=changed))
    expected = replace(owner.session, updated_at=5.0, revision=owner.session.revision + 1)
    equal(await store.get(SessionKey("s", "u")), expected, "the session")


@_law
async def check_a_stale_owner_is_refused(store: SessionStore, other: SessionStore) -> None:
    """A commit under another epoch than the last writes nothing; acceptance 47 and 64."""
    old = await eventful(store)
    new = Owner(other, (await other.activate(SessionKey("s"))).session)
    for epoch in (0, 1, 3):
        async with unchanged(store, "s"):
            commit = store.commit(SessionKey("s"), epoch, of_everything(old))
            error = await refuses(SessionFencedError, commit, f"a commit under epoch {epoch} of 2")
            equal((error.session_id, error.epoch), ("s", epoch), "what the error names")
    await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    await new.commit("c", turns=[a_turn(2)])
    await refuses(SessionFencedError, old.commit("c"), "the old owner, when the new one has committed")
    equal(await held(store, Span(new.session.log, 2, 3)), ["c"], "the new owner's block")


@_law
async def check_a_commit_for_another_state_is_refused(store: SessionStore) -> None:
    """A commit for an earlier or a later state of the session writes nothing, as the store may have been restored."""
    owner = await eventful(store)
    full_commit = of_everything(owner)
    without_blocks = replace(
        full_commit, session=replace(full_commit.session, log_size=owner.session.log_size), blocks=()
    )
    for commit in (full_commit, without_blocks):
        moved = {
            "a commit that is missing": replace(commit.session, revision=commit.session.revision + 1),
            "a commit that is one too many": replace(commit.session, revision=commit.session.revision - 1),
            "a block that is missing": replace(commit.session, log_size=commit.session.log_size + 1),
            "a block that is one too many": replace(commit.session, log_size=commit.session.log_size - 1),
            "another log": replace(commit.session, log="999999999999999999"),
        }
        for difference, session in moved.items():
            async with unchanged(store, "s"):
                await refuses(
                    SessionFencedError, store.commit(SessionKey("s"), 1, replace(commit, session=session)), difference
                )
    await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    await store.commit(SessionKey("s"), 1, full_commit)


@_law
async def check_a_commit_changes_no_other_session(store: SessionStore) -> None:
    """A commit that names a session, and the log of another one, writes nothing."""
    owner, another = await eventful(store), await own(store, "another")
    async with unchanged(store, "s", "another"):
        for session_id in ("another", "missing"):
            await refuses(SessionFencedError, store.commit(SessionKey(session_id), 1, of_everything(owner)), session_id)
        await refuses(
            SessionFencedError, store.commit(SessionKey("s"), 1, another.prepare("x")), "the log of another session"
        )


@_law
async def check_a_log_is_never_used_again(store: SessionStore, other: SessionStore) -> None:
    """Also after deletions. Sessions that one process creates are listed in the order of their creation."""
    logs: list[str] = []
    for index in range(20):
        created = await (store, other)[index % 2].create(a_session())
        logs.append(created.log)
        await store.delete(SessionKey("s"))
    equal(len(set(logs)), len(logs), "different logs")
    for index in range(10):
        await (store, other)[index % 2].create(a_session(f"s{index}"))
    equal(
        [session.session_id for session in await store.query()],
        [f"s{index}" for index in reversed(range(10))],
        "the list",
    )


@_law
async def check_an_owner_of_a_deleted_session_is_refused(store: SessionStore) -> None:
    """Also when a new session has the same id and epoch; acceptance 47."""
    old = await eventful(store)
    await store.delete(SessionKey("s"))
    await refuses(SessionFencedError, old.commit("c"), "a commit to a deleted session")
    new = await own(store)
    equal(new.session.epoch, old.session.epoch, "the epoch of the new session")
    async with unchanged(store, "s"):
        await refuses(
            SessionFencedError, store.commit(SessionKey("s"), 1, of_everything(old)), "the old session's owner"
        )
        stale = store.delete(SessionKey("s"), epoch=1, log=old.session.log)
        await refuses(SessionFencedError, stale, "a delete by the old session's owner")
    await store.delete(SessionKey("s"), epoch=1, log=new.session.log)


@_law
async def check_an_activation_and_a_commit_at_once_are_in_some_order(store: SessionStore, other: SessionStore) -> None:
    """If the commit succeeds, the activation returns its state; if it is refused, it is never stored."""
    await store.create(a_session())
    owner = Owner(store, (await store.activate(SessionKey("s"))).session)
    for _ in range(10):
        commit, activation = await asyncio.gather(
            owner.commit("x"), other.activate(SessionKey("s")), return_exceptions=True
        )
        if isinstance(activation, BaseException):
            raise activation
        if not isinstance(commit, Span | SessionFencedError):
            raise AssertionError(f"a commit beside an activation gave {commit!r}")
        equal(activation.session.log_size, owner.session.log_size, f"the log when the commit gave {commit!r}")
        equal(await store.get(SessionKey("s")), activation.session, "the session after both")
        owner = Owner(store, activation.session)


@_law
async def check_a_key_is_stored_once(store: SessionStore) -> None:
    """A commit with a run id, idempotency key or event key that is stored already writes nothing; acceptance 29."""
    owner = await eventful(store)
    another = await own(store, "another")
    run = a_run("r5", 0, session_id="another", idempotency_key="k5")
    await another.commit(new_run=run, events=[an_event(1, "e5", "another")])
    for key, commit in [
        ("r0", of_everything(owner, run_id="r0")),
        ("r5", of_everything(owner, run_id="r5")),
        ("k0", of_everything(owner, idempotency_key="k0")),
        ("e1", of_everything(owner, event_key="e1")),
        ("e9", replace(of_everything(owner), events=[an_event(8, "e9"), an_event(9, "e9")])),
        ("e1", replace(of_everything(owner, event_key="e1"), new_run=None)),
    ]:
        async with unchanged(store, "s", "another"):
            error = await refuses(
                DuplicateKeyError, store.commit(SessionKey("s"), 1, commit), f"key {key!r} a second time"
            )
            equal((error.session_id, error.key), ("s", key), "what the error names")
        await refuses(RunNotFoundError, store.run("r9"), "the run of a refused commit")
    await store.commit(SessionKey("s"), 1, of_everything(owner, idempotency_key="k5", event_key="e5"))
    equal((await store.run("r5")).session_id, "another", "the other session's run")
    equal(await store.run_of_key(SessionKey("another"), "k5"), await store.run("r5"), "the other session's key")
    equal(
        await store.event_of_key(SessionKey("another"), "e5"), an_event(1, "e5", "another"), "the other session's event"
    )


@_law
async def check_stored_blocks_and_events_are_not_overwritten(store: SessionStore) -> None:
    """A commit whose blocks or events have taken positions or numbers is refused. So is a repeated one."""
    owner = await eventful(store)
    full_commit = of_everything(owner)
    late = replace(owner.session, log_size=1)
    for subject, commit in [
        ("a block", replace(full_commit, session=replace(full_commit.session, log_size=3))),
        ("an event", replace(full_commit, events=[an_event(3), an_event(4)])),
        ("a forgotten event with a key", replace(full_commit, events=[an_event(1), an_event(4)])),
        ("the first block", Owner(store, late).prepare("x", turns=[a_turn(9)])),
    ]:
        async with unchanged(store, "s"):
            await refuses(StoreError, store.commit(SessionKey("s"), 1, commit), f"{subject} that is stored already")
    await store.commit(SessionKey("s"), 1, full_commit)
    async with unchanged(store, "s"):
        await refuses(StoreError, store.commit(SessionKey("s"), 1, full_commit), "the same commit again")


@_law
async def check_a_cancelled_commit_is_stored_whole_or_not_at_all(store: SessionStore) -> None:
    """At whatever time it is cancelled. After the next activation the outcome does not change."""
    for wait_s in (None, 0, 0.0005, 0.002):
        owner = await eventful(store)
        before, commit = await state_of(store, "s"), of_everything(owner)
        task = asyncio.ensure_future(store.commit(SessionKey("s"), 1, commit))
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        task.cancel()
        await asyncio.wait([task])
        activated = (await store.activate(SessionKey("s"))).session
        state = await state_of(store, "s")
        stored = replace(commit.session, epoch=2, revision=activated.revision)
        outcomes = ([activated, *before[1:]], [stored, *state_after(commit)[1:]])
        if state not in outcomes:
            raise AssertionError(f"a cancelled commit left {state!r}, expected one of {outcomes!r}")
        await store.delete(SessionKey("s"))
