"""The verbs of a session: each is declared here once, by the function that carries it out in the session's process.

A function whose verb `reads` is also called in a caller's process, for a session without a live process. To follow a
verb from its caller to its commit, go to its function here, and on to the part of the core that it calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from turnwise import __version__
from turnwise.actors.hosting.events_ahead import read_page
from turnwise.actors.hosting.verb_declaration import Reader, Verb, changes, of_memory, reads, starts
from turnwise.actors.hosting.waits import ENDING_S
from turnwise.actors.hosting.wire import (
    Message,
    PackedEvents,
    PackedOutcome,
    PackedTurn,
    SessionInfo,
    StartAnswer,
    Waited,
)
from turnwise.actors.memory.session_memory_access import SessionMemoryAccess
from turnwise.errors import TurnNotFoundError, TurnwiseError, UnknownVerbError
from turnwise.memory.conversation.runs import Until, has_reached
from turnwise.memory.conversation.spans import Span, Spans, union

if TYPE_CHECKING:
    from turnwise.actors.hosting.session_service import SessionService
    from turnwise.actors.session.runs.admission import Started, StartOptions
    from turnwise.memory.conversation.blocks import AnyBlock, Summary
    from turnwise.memory.conversation.calls.tool_calls import ApprovalDecision, PendingCall
    from turnwise.memory.conversation.events import Event
    from turnwise.memory.conversation.marks import Mark
    from turnwise.memory.conversation.memory_use import MemoryUse
    from turnwise.memory.conversation.prompts import Prompt
    from turnwise.memory.conversation.runs import IfBusy, RunRecord
    from turnwise.memory.conversation.sessions import MemberRole, SessionKey, SessionRecord
    from turnwise.memory.conversation.turns import Turn
    from turnwise.memory.conversation.views.chat_messages import ChatMessage
    from turnwise.memory.conversation.views.event_filter import EventFilter
    from turnwise.memory.deliveries.records import Delivery, Missed
    from turnwise.memory.deliveries.schedules import When
    from turnwise.memory.longterm.retention.deletion_report import Forgotten
    from turnwise.memory.providers.message_reading import Given
    from turnwise.memory.stores.base import Page
    from turnwise.strategies.compaction import Compaction

ENGINE_TICKS = 3
"""How many iterations of the event loop an engine may take to answer so that the start is answered with the end."""

END_COMMIT_S = 2.0
"""How long the answer to such a start waits until the end is stored, in seconds."""

TURNS = 100
"""How many turns are packed before others get the event loop."""

# Reading. `cached` are the spans of blocks that the caller has cached, which its answer leaves out.


@reads()
async def latest(reader: Reader, cached: Spans) -> PackedTurn | None:
    """Return the newest turn: pending, queued, running or ended; None if there is none."""
    return await _packed(await reader.reads.latest(), cached)


@reads()
async def turn(reader: Reader, index: int | str, cached: Spans) -> PackedTurn:
    """Return the turn with this index, or with this id of the caller's."""
    return await PackedTurn.pack(await reader.reads.turn(index), cached)


@reads()
async def turns(reader: Reader, after: int, limit: int, cached: Spans) -> tuple[list[PackedTurn], int | None]:
    """Return a page of turns by index, and the index after which the next page begins; None if there is none."""
    packed = list[PackedTurn]()
    for read in await reader.reads.turns(after, limit):
        packed.append(await PackedTurn.pack(read, cached))
        cached = _with_cached(cached, read)
        if len(packed) % TURNS == 0:
            await asyncio.sleep(0)
    return packed, reader.reads.next_after(packed[-1].record.index) if packed else None


@reads()
async def messages(reader: Reader, before: str | None, limit: int) -> tuple[list[ChatMessage], bool]:
    """Return the newest messages before a cursor, oldest first, and whether there are earlier ones."""
    return await reader.reads.messages(before, limit)


@reads()
async def run(reader: Reader, run_id: str) -> RunRecord:
    """Return a run's record, with its usage up to now; for a merged run, of the run that has its prompts."""
    return await reader.reads.run(run_id)


@reads()
async def runs(reader: Reader, after: int, limit: int) -> tuple[list[RunRecord], int | None]:
    """Return a page of runs by their turns' indexes, and the index after which the next page begins, or None."""
    page = await reader.reads.runs(after, limit)
    return page, reader.reads.next_after(page[-1].turn_index) if page else None


@reads()
async def pending(reader: Reader, run_id: str) -> list[PendingCall]:
    """Return the calls that wait for a decision, the run's and its agents', in the order of the run's calls."""
    return await reader.reads.pending(run_id)


@reads()
async def expand(reader: Reader, summary: Summary) -> tuple[AnyBlock, ...]:
    """Return the blocks that a summary replaced, in order."""
    return await reader.reads.expand(summary)


@reads()
async def info(reader: Reader) -> SessionInfo:
    """Return the session's record, its open runs, and the process that hosts it."""
    session = await reader.reads.session()
    return SessionInfo(
        session=session,
        active_run_id=reader.reads.active_run_id,
        queued_run_ids=tuple(reader.reads.queued_run_ids),
        pid=reader.pid,
        node_id=reader.node_id,
    )


@reads(waits=True)
async def wait(
    reader: Reader, timeout_s: float | None, run_id: str, cached: Spans, until: Until = "ended"
) -> Waited[PackedOutcome]:
    """Wait until a run has ended or, with `until="settled"`, waits for a decision; return how it stands then."""
    outcome = await PackedOutcome.pack(await reader.reads.wait(run_id, timeout_s, until), cached)
    return Waited(outcome, has_reached(outcome.state, until, awaits_agents=outcome.awaits_agents))


@reads(waits=True)
async def events(
    reader: Reader,
    timeout_s: float,
    after: int,
    limit: int,
    *,
    run_id: str | None = None,
    only: EventFilter | None = None,
    decoder: str = "",
) -> Waited[tuple[list[Event] | PackedEvents, int, bool]]:
    """Wait for events of the session or of one run; return them, the number to continue after, and if that is all.

    A caller of this release, which it says as `decoder`, gets stored events as rows and decodes them. Another release
    may know other fields, so it gets models, which are fitted when they are unpickled.
    """
    if only or decoder != __version__:
        events, last, is_all = await reader.reads.events(after, limit, run_id=run_id, only=only, timeout_s=timeout_s)
        return Waited((events, last, is_all), bool(events) if only else is_all or last > after)
    read = reader.ahead.read if reader.ahead else read_page
    page, last, is_all = await read(reader.reads, after, limit, run_id, timeout_s)
    return Waited((page, last, is_all), is_all or last > after)


# Prompts and runs


@changes(role="member")
async def append(service: SessionService, prompts: tuple[Prompt, ...], key: str, cached: Spans) -> PackedTurn:
    """Store prompts for the next run; return its turn."""
    core = service.core
    index = await core.admission.append(prompts, key)
    try:
        appended = await core.reads.turn(index)
    except TurnNotFoundError:  # a repeated call, whose prompts moved on when their run was rolled back
        if (newest := await core.reads.latest()) is None:
            raise
        appended = newest
    return await PackedTurn.pack(appended, cached)


@starts
async def start(
    service: SessionService, engine_id: str, prompts: tuple[Prompt, ...], options: StartOptions, cached: Spans
) -> StartAnswer:
    """Start a run with the caller's engine; return its outcome, too, if it ends at once."""
    async with service.engine(engine_id):
        started = await service.core.admission.start(prompts, **options)
    return await _start_answer(service, started, cached)


@starts
async def rerun(
    service: SessionService,
    engine_id: str,
    prompts: tuple[Prompt, ...] | None,
    options: StartOptions,
    *,
    at: int | None,
    cached: Spans,
) -> StartAnswer:
    """Start a run that answers a turn anew, with other prompts or its own; return its outcome, too, if it ends at once.

    `at`: the index of a turn that is shown; None for the last one that has ended.
    """
    async with service.engine(engine_id):
        started = await service.core.admission.rerun(prompts, at, **options)
    return await _start_answer(service, started, cached)


@changes()
async def choose(service: SessionService, index: int, key: str) -> bool:
    """Show the version of the conversation that has a turn; return whether another one was shown."""
    return await service.core.versions.choose(index, key)


@changes()
async def say(
    service: SessionService, text: str, *, run_id: str, key: str | None, trace: Mapping[str, str] | None, cached: Spans
) -> StartAnswer:
    """Store a text as an answer of the assistant's, by a run that asks no model."""
    started = await service.core.admission.say(text, run_id=run_id, key=key, trace=trace)
    return await _start_answer(service, started, cached)


async def _start_answer(service: SessionService, started: Started, cached: Spans) -> StartAnswer:
    """Return the answer to a start; with the run's end if the run ends at once, which saves the caller a call."""
    for _ in range(ENGINE_TICKS):
        await asyncio.sleep(0)
    outcome = None
    with suppress(TurnwiseError):  # the start is stored anyway; `wait` raises the error
        if await service.core.reads.is_ending(started.run_id):
            outcome = await service.core.reads.wait(started.run_id, END_COMMIT_S)
    packed = await PackedOutcome.pack(outcome, cached) if outcome and not outcome.run.is_open else None
    return StartAnswer(started.run_id, started.turn_index, packed, started.dropped)


@starts
async def check_start(
    service: SessionService, engine_id: str, prompts: tuple[Prompt, ...], options: StartOptions
) -> str | None:
    """Raise what `start` would raise if no run were active; return the run of the same idempotency key, or None."""
    async with service.engine(engine_id):
        return await service.core.admission.check_start(prompts, **options)


@starts
async def deliver(service: SessionService, engine_id: str, delivery: Delivery) -> str | None:
    """Carry out a delivery that is due, if the store has this revision still; return the id of its run, if it has one.

    It is one of this session, or one that another session has addressed to it. Then a session that has no engine of its
    own yet gets the sender's.
    """
    async with service.engine_of_sender(engine_id):
        if delivery.to_session is not None:
            return await service.core.inbox.receive(delivery)
        started = await service.core.admission.deliver(delivery.key, delivery.delivery_id, delivery.revision)
    return started.run_id if started else None


@changes(role="member")
async def cancel(service: SessionService, reason: str, run_id: str) -> bool | None:
    """Cancel a run; return whether it ended as cancelled, or None if it has not ended yet: then repeat the call."""
    return await service.core.admission.cancel(reason, run_id, ENDING_S)


@changes(role="member")
async def decide(service: SessionService, run_id: str, call_id: str, decision: ApprovalDecision) -> None:
    """Decide about a tool call that waits; its run goes on when no call is left to decide."""
    await service.core.approvals.decide(run_id, call_id, decision)


@changes(role="member")
async def hear(service: SessionService, run_id: str, agent: str) -> None:
    """Store what an agent asks that an open run has called, as it stands now."""
    await service.core.inbox.hear(run_id, agent)


@changes(role="member")
async def add_event(
    service: SessionService,
    name: str,
    data: Mapping[str, Any] | None,
    key: str,
    *,
    run_id: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> int:
    """Store an event of the caller's, of a run or of the session; return its number."""
    return await service.core.additions.add_event(name, data, key, run_id=run_id, labels=labels)


# Runs that begin later


@reads(role="owner")
async def schedules(reader: Reader, cursor: str | None, limit: int) -> Page[Delivery]:
    """Return a page of the session's deliveries, by id."""
    return await reader.reads.deliveries(cursor, limit)


@reads(role="owner")
async def get_schedule(reader: Reader, key: str) -> Delivery:
    """Return the session's delivery with this key."""
    return await reader.reads.delivery(key)


@changes(needs_engine=True)  # it checks the prompts by the engine that will answer them
async def schedule(
    service: SessionService,
    prompts: tuple[Prompt, ...],
    when: When,
    *,
    delivery_id: str,
    key: str | None,
    missed: Missed,
    if_busy: IfBusy,
    options: Mapping[str, Any],
) -> Delivery:
    """Add a delivery that begins a run; return it, or the one that the session has under this key."""
    settings: dict[str, Any] = {"missed": missed, "if_busy": if_busy, "options": options}
    return await service.core.scheduling.add(prompts, when, delivery_id=delivery_id, key=key, **settings)


# Not repeatable: `after_s` counts from when it is carried out, and an occurrence may come in between.
@changes(needs_engine=True, repeatable=False)
async def change_schedule(
    service: SessionService,
    key: str,
    *,
    when: When | None,
    prompts: tuple[Prompt, ...] | None,
    missed: Missed | None,
    if_busy: IfBusy | None,
    options: Mapping[str, Any],
) -> Delivery:
    """Change what a delivery brings, or when; return the delivery as it is then."""
    settings: dict[str, Any] = {"missed": missed, "if_busy": if_busy, "options": options}
    return await service.core.scheduling.change(key, when=when, prompts=prompts, **settings)


@changes(needs_engine=True)  # it checks the text by the engine that answers here
async def send(service: SessionService, to_session: str, text: str, delivery_id: str) -> Delivery:
    """Add a delivery that brings a message to another session of the user; return it."""
    return await service.core.scheduling.send(to_session, text, delivery_id=delivery_id)


@changes()
async def cancel_schedule(service: SessionService, key: str) -> bool:
    """Remove a delivery; return whether there was one."""
    return await service.core.scheduling.cancel(key)


# Members


@changes(role="reader")  # every member may leave; all else is for owners: see `Membership`
async def set_member(service: SessionService, user_id: str, role: MemberRole | None) -> SessionRecord:
    """Give a user a role in the session, or remove a member; return the session's record."""
    return await service.core.membership.set_member(user_id, role)


# The session as a whole


@changes(role="reader")
async def warm(service: SessionService) -> None:
    """Activate the session, so that runs of a lost process are ended or resumed."""
    await service.core.transactor.activate()


@changes()
async def end(service: SessionService) -> bool:
    """End the session and its runs; return whether the active run has ended, too."""
    return await service.core.admission.end_session(timeout_s=ENDING_S)


@changes()
async def refresh(service: SessionService) -> None:
    """Restart the session's time to live."""
    await service.core.row.refresh()


@changes()
async def update(
    service: SessionService, title: str | None, metadata: Mapping[str, Any] | None, merge: bool
) -> SessionRecord:
    """Change the session's title and metadata; return its record."""
    return await service.core.row.update(title, metadata, merge)


@changes(needs_engine=True)
async def use_engine(service: SessionService, name: str | None) -> None:
    """Set the engine of later runs, by its name among those of the caller."""
    await service.core.row.use_engine(name)


@changes()
async def use_memory(service: SessionService, use: MemoryUse) -> None:
    """Set the default for later runs' use of long-term memory."""
    await service.core.row.use_memory(use)


@changes()
async def fork(service: SessionService, at: int | None, session_id: str, deliveries: bool = False) -> SessionRecord:
    """Create a session that continues after a turn of this one, with copies of its deliveries; return its record."""
    return await service.core.forking.fork(at, session_id, deliveries=deliveries)


@changes()
async def import_turns(
    service: SessionService, conversation: Given, key: str | None, after: int | None, memory: MemoryUse
) -> int:
    """Store a conversation from elsewhere, or a part of it; return the index of its last turn."""
    return await service.core.importing.import_turns(conversation, key, after, memory)


@changes()
async def check_import(service: SessionService, conversation: Given, key: str, after: int | None) -> int | None:
    """Raise what `import_turns` would raise; return the index of the last turn if it is stored already."""
    return await service.core.importing.check_import(conversation, key, after)


@changes()
async def stored_prefix(service: SessionService, most: int) -> tuple[int, str, int]:
    """Return how many blocks the next turn continues, a digest of them, and the index of the newest ended turn."""
    return await service.core.importing.stored_prefix(most)


@changes()
async def remove(service: SessionService, index: int, spans: Spans, key: str) -> int:
    """Remove blocks that a turn added from later requests; return how many."""
    return await service.core.removals.remove(index, spans, key)


@changes(role="member")
async def mark(
    service: SessionService, index: int, number: int, name: str, value: Any, *, by: str | None
) -> Mark | None:
    """Set a mark of a message, or remove it; return it as stored."""
    return await service.core.marking.mark(index, number, name, value, by=by)


@changes(needs_engine=True)
async def clear(
    service: SessionService, keep_last: int, *, memory: bool, verify: bool, updated_at: float | None, key: str
) -> Forgotten:
    """Remove the older turns for good; if `memory` is set, the caller's memories forget them."""
    return await service.core.forgetting.clear(keep_last, memory=memory, verify=verify, updated_at=updated_at, key=key)


@changes(needs_engine=True)
async def forget_turn(service: SessionService, index: int, verify: bool) -> Forgotten:
    """Remove a turn from later requests and from the caller's memories."""
    return await service.core.forgetting.forget_turn(index, verify=verify)


@reads(role="owner", action="delete the session")
async def agents(reader: Reader) -> list[SessionKey]:
    """Return the sessions of agents that the session has called, and of those below, leaves first."""
    return await reader.reads.agents()


@changes()
async def delete(
    service: SessionService, *, verify: bool, updated_at: float | None, keeps_events: bool = False
) -> Forgotten:
    """Delete the session, and nothing that memories have of it, nor what an event store is to keep of it."""
    return await service.delete(memory=False, verify=verify, updated_at=updated_at, keeps_events=keeps_events)


@changes(needs_engine=True)
async def delete_with_memories(service: SessionService, *, verify: bool, updated_at: float | None) -> Forgotten:
    """Delete the session, and what the caller's memories have of it."""
    return await service.delete(memory=True, verify=verify, updated_at=updated_at)


# The window


@changes(needs_engine=True)
async def compact(service: SessionService, explain: bool) -> Compaction | None:
    """Compact the window with the caller's strategy; return what was done, None if it stays as it is."""
    return await service.core.compaction.compact(explain=explain)


@changes(needs_engine=True)
async def window(service: SessionService, cached: Spans, message: str | None) -> PackedTurn | None:
    """Return the newest turn with the blocks of the next request, with room for a message behind them."""
    return await _packed(await service.core.next_window.read(message), cached)


# Long-term and working memory


@changes(waits=True, needs_engine=True, role="member")
async def wait_for_memory(service: SessionService, timeout_s: float | None) -> Waited[bool | None]:
    """Wait until the caller's memories have received all turns that have ended; None if they have not in time."""
    received = await service.core.ingestion.wait_for_memory(timeout_s)
    return Waited(received, received is not None)


save_item = of_memory(SessionMemoryAccess.save)
recall = of_memory(SessionMemoryAccess.recall)
recall_apart = of_memory(SessionMemoryAccess.recall_apart)
list_items = of_memory(SessionMemoryAccess.list_items)
update_item = of_memory(SessionMemoryAccess.update)
pin_item = of_memory(SessionMemoryAccess.pin)
delete_items = of_memory(SessionMemoryAccess.delete)
find_about = of_memory(SessionMemoryAccess.find_about, role="owner")
forget_about = of_memory(SessionMemoryAccess.forget_about, role="owner")
read_notes = of_memory(SessionMemoryAccess.read_notes)
replace_notes = of_memory(SessionMemoryAccess.replace_notes)
merge_notes = of_memory(SessionMemoryAccess.merge_notes, repeatable=False)  # free text is appended
clear_notes = of_memory(SessionMemoryAccess.clear_notes)


async def _packed(newest: Turn | None, cached: Spans) -> PackedTurn | None:
    return await PackedTurn.pack(newest, cached) if newest else None


def _with_cached(cached: Spans, received: Turn) -> Spans:
    """Return the spans that a caller has cached after it received a turn."""
    own = cached if received.cache.is_of(cached) else ()
    return union(own, (Span(received.cache.source, 0, 1),), received.record.prompt, received.record.spans)


VERBS: Mapping[str, Verb[..., Any]] = {verb.name: verb for verb in tuple(globals().values()) if isinstance(verb, Verb)}
"""All verbs of this module, by their names."""


def find_verb(message: Message) -> Verb[..., Any]:
    """Return the verb that a message names.

    Raises:
        UnknownVerbError: there is none of this name.
    """
    if message.verb not in VERBS:
        raise UnknownVerbError(message.session.session_id, message.verb)
    return VERBS[message.verb]
