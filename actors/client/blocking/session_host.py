# Made from actors/client/session_host.py by `make blocking`: change that file.
"""`SessionHost`: asks the actor that hosts a session, and asks again until one answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from turnwise import __version__
from turnwise.actors.client.blocking import steps
from turnwise.actors.client.shared.resending import Search, lost_error
from turnwise.actors.client.shared.sessions_client import SessionsClient
from turnwise.actors.client.shared.trace_context import callers_trace
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.runtime import AwayError, CallError
from turnwise.actors.hosting.verb_declaration import Reader, VerbCall
from turnwise.actors.hosting.waits import SLICE_S
from turnwise.actors.hosting.wire import (
    ClientOutcome,
    EngineWanted,
    PackedEvents,
    PackedOutcome,
    Refused,
    SessionRef,
    StartAnswer,
    StartedRun,
    Waited,
)
from turnwise.actors.wire_version import unpacked_answer
from turnwise.errors import (
    CorruptRecordError,
    KeyMissingError,
    NoActiveRunError,
    OverloadedError,
    ReadOnlyStoreError,
    SessionChangedError,
    SessionFencedError,
    SessionInUseError,
    SessionNotFoundError,
)
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.runs import Until
from turnwise.memory.conversation.views.event_filter import EventFilter
from turnwise.memory.growing_pauses import GrowingPauses
from turnwise.memory.longterm.retention.deletion_report import Forgotten
from turnwise.memory.values.ids import new_id

if TYPE_CHECKING:
    from turnwise.actors.session.runs.admission import StartOptions

ANSWER_S = 1.0
"""How many seconds a caller waits for an answer beyond the wait's own timeout."""

REFUSED_S = 60.0
"""How long a caller without a timeout retries a wait that the host refuses before OverloadedError, in seconds."""

PAUSE_S, MOST_PAUSE_S = 0.05, 5.0
"""The first and the longest pause after such a refusal, in seconds."""

Answer = TypeVar("Answer")


class SessionHost:
    """Asks the host of one session, on behalf of a client."""

    __slots__ = ("_client", "_ref")

    def __init__(self, client: SessionsClient, ref: SessionRef) -> None:
        self._client = client
        self._ref = ref

    def ask(self, call: VerbCall[Answer], *, timeout_s: float | None = None) -> Answer:
        """Send a verb to the session's host, and repeat it after crashes, restarts and moves until it is answered.

        So a verb may be carried out twice: see `Verb`. If it needs an engine, the client's is sent to a session that
        has another; if no manager is open in this process, the session uses its current one.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            ReadOnlyStoreError: the manager is read-only, and the verb does not only read.
            SessionLostError: no process of the session could be reached for `REACH_S` seconds; or the one that was
                asked has died, and the verb may not be repeated.
            TurnwiseError: the host refused the request.
        """
        client, ref, verb = self._client, self._ref, call.verb
        if client.read_only and not verb.reads:
            raise ReadOnlyStoreError(ref.session_id, verb.name)
        if not verb.repeatable:
            self.ask(verbs.warm())  # so that a process that has left by now is not taken for one that died
        request = client.pack(ref, call)
        search = Search(ref.session_id)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if verb.reads and client.has_store and not client.is_live(ref):
                stored = self._read(call)
                # A run may have started meanwhile, whose deltas the store does not have.
                if stored is not None and not (verb.waits and client.is_live(ref)):
                    return stored[0]
            reach = search.begin_call(until)
            try:
                packed = steps.call(client.process(ref), request, reach, is_repeatable=verb.repeatable)
            except TimeoutError as error:
                raise TimeoutError(f"no answer within {timeout_s} s") from error
            except CallError as error:
                if not isinstance(error, AwayError) or not verb.repeatable:
                    self._look_again()  # the next request may find another process
                    raise lost_error(ref.session_id, verb, error) from error
                failure: Exception = error
            else:
                answer = unpacked_answer(packed)
                if isinstance(answer, EngineWanted):
                    request = client.pack(ref, call, sends_engine=True)
                    search = Search(ref.session_id)
                    continue
                if not isinstance(answer, Refused):
                    return cast(Answer, answer)
                if not isinstance(answer.error, SessionFencedError):
                    raise answer.error
                failure = answer.error  # that process no longer owns the session; look for the one that does
            self._look_again()
            steps.sleep(search.pause_after(failure))

    def _look_again(self) -> None:
        """Search the process again at the next call. What asks the cluster for it holds up no other caller."""
        steps.in_thread(partial(self._client.processes.invalidate, self._ref.key))

    def _read(self, call: VerbCall[Answer]) -> tuple[Answer] | None:
        """Return the answer to a read from the store, in a tuple; None if only the session's process can answer.

        Reading from the store does not interrupt runs of another Ray. It cannot answer a wait for a run whose process
        died: a new process of the session must end or resume that run first.
        """
        from turnwise.actors.hosting.stored_source import StoredSource, UnattendedError
        from turnwise.actors.session.state.reads import SessionReads

        client, ref = self._client, self._ref
        source = StoredSource(ref.key, *client.stores, log=ref.log, raises_unattended=not client.read_only)
        try:
            reader = Reader(SessionReads(source))
            return (steps.run(client.portal, call.read, reader, call.verb.acting(ref)),)
        except UnattendedError:
            return None

    def start(self, prompts: tuple[Prompt, ...], options: StartOptions) -> StartedRun:
        """Start a run with the client's engine; the engine is sent first if the session has another."""
        cache = self._client.cache(self._ref)
        return self._started(self.ask(verbs.start(prompts, options, cache.held)), cache)

    def rerun(self, prompts: tuple[Prompt, ...] | None, at: int | None, options: StartOptions) -> StartedRun:
        """Answer a turn anew with the client's engine; see `start`."""
        cache = self._client.cache(self._ref)
        return self._started(self.ask(verbs.rerun(prompts, options, at=at, cached=cache.held)), cache)

    def say(self, text: str, key: str | None) -> StartedRun:
        """Store a text as an answer of the assistant's; see `Session.say`."""
        cache = self._client.cache(self._ref)
        trace = callers_trace().get("trace")
        return self._started(self.ask(verbs.say(text, run_id=new_id(), key=key, trace=trace, cached=cache.held)), cache)

    def _started(self, answer: StartAnswer, cache: BlockCache) -> StartedRun:
        outcome = self._client.outcome(answer.outcome, cache) if answer.outcome else None
        return StartedRun(answer.run_id, answer.turn_index, outcome, answer.dropped)

    def delete_but_events(self, updated_at: float) -> Forgotten:
        """Delete the session if its last commit was at this time; the event store keeps its events.

        Raises:
            SessionInUseError, SessionChangedError: see `delete`.
            StoreError: the event store has not got all events yet; nothing was deleted.
        """
        report = self.ask(verbs.delete(verify=False, updated_at=updated_at, keeps_events=True))
        self._client.drop(self._ref)
        return report

    def delete(self, *, memory: bool, verify: bool, updated_at: float | None = None) -> Forgotten:
        """Delete the session and its agents', leaves first; if `memory` is set, the client's memories forget them too.

        Raises:
            SessionInUseError: a run is active or queued. Nothing was deleted, unless it began meanwhile.
            SessionChangedError: the session's last commit was not at `updated_at`; likewise.
        """
        if self._client.read_only:
            raise ReadOnlyStoreError(self._ref.session_id, "delete")
        report = Forgotten()
        if agents := self.ask(verbs.agents()):
            info = self.ask(verbs.info())
            if run_id := next(iter(filter(None, (info.active_run_id, *info.queued_run_ids))), None):
                raise SessionInUseError(self._ref.session_id, run_id)
            if updated_at not in (None, info.session.updated_at):
                raise SessionChangedError(self._ref.session_id)
        for key in agents:
            agent = SessionRef(key, as_user=self._ref.as_user)
            report += SessionHost(self._client, agent).remove(memory=memory, verify=verify)
        return report + self._delete(memory=memory, verify=verify, updated_at=updated_at)

    def _delete(self, *, memory: bool, verify: bool, updated_at: float | None = None) -> Forgotten:
        delete = verbs.delete_with_memories if memory else verbs.delete
        report = self.ask(delete(verify=verify, updated_at=updated_at))
        self._client.drop(self._ref)
        return report

    def remove(self, *, memory: bool, verify: bool) -> Forgotten:
        """End the session and delete it, without its agents'; do nothing if it is gone.

        Its process does so if it is live, or if memories are to forget the session. Otherwise it is deleted from the
        store, in which a later process finds none.
        """
        client, key = self._client, self._ref.key
        by_process = not client.has_store or client.is_live(self._ref) or (memory and bool(client.memories))
        try:
            if by_process:
                try:
                    self.end()  # an active run would make `delete` refuse
                    return self._delete(memory=memory, verify=verify)
                except (KeyMissingError, CorruptRecordError):
                    if memory or not client.has_store:
                        raise
                    # Its process cannot read it; deleting it from the store needs no reading.
            if history := client.history_store:
                steps.run(client.portal, history.delete, key)
            turns: int = steps.run(client.portal, client.session_store.delete, key)
        except SessionNotFoundError:
            return Forgotten()
        finally:
            client.drop(self._ref)
        return Forgotten(sessions=1, turns=turns)

    def clear(self, keep_last: int, *, memory: bool, verify: bool, updated_at: float | None = None) -> Forgotten:
        """Remove the session's older turns from its history; if `memory` is set, the client's memories forget them."""
        report = self.ask(verbs.clear(keep_last, memory=memory, verify=verify, updated_at=updated_at, key=new_id()))
        self._client.drop(self._ref)
        return report

    def wait(self, run_id: str, timeout_s: float | None, until: Until) -> ClientOutcome:
        """Wait until a run has ended, or is suspended; return how it stands then, or after `timeout_s` seconds.

        Raises:
            TimeoutError: the session's process has not answered by then.
        """
        cache = self._client.cache(self._ref)

        def ask(left_s: float | None) -> Waited[PackedOutcome]:
            limit_s = None if left_s is None else left_s + ANSWER_S
            return self.ask(verbs.wait(left_s, run_id, cache.held, until), timeout_s=limit_s)

        return self._client.outcome(_poll(timeout_s, ask), cache)

    def follow(
        self,
        after: int,
        limit: int,
        run_id: str | None,
        timeout_s: float | None = None,
        only: EventFilter | None = None,
    ) -> tuple[list[AnyEvent], int, bool]:
        """Wait for events of a run, or of the whole session, up to `timeout_s` seconds; see `SessionReads.events`."""

        def ask(left_s: float | None) -> Waited[tuple[list[Event] | PackedEvents, int, bool]]:
            nonlocal after
            slice_s = SLICE_S if left_s is None else min(left_s, SLICE_S)
            waited = self.ask(verbs.events(slice_s, after, limit, run_id=run_id, only=only, decoder=__version__))
            if only:
                after = waited.answer[1]  # what it has looked through without finding one
            return waited

        events, later, is_all = _poll(timeout_s, ask)
        return cast(list[AnyEvent], events.unpack() if isinstance(events, PackedEvents) else events), later, is_all

    def wait_for_memory(self, timeout_s: float | None) -> bool:
        """Wait until the client's memories have received the session's turns; return False after `timeout_s`."""

        def ask(left_s: float | None) -> Waited[bool | None]:
            return self.ask(verbs.wait_for_memory(left_s))

        done = _poll(timeout_s, ask)
        return bool(done)

    def cancel(self, reason: str, run_id: str | None = None) -> bool:
        """Cancel a run, by default the active one, and wait for its end; return whether it ended as cancelled.

        The active run is found first and then named, since a call may be repeated when the next run is active.

        Raises:
            NoActiveRunError: no run was named and none is active.
        """
        if self._client.read_only:
            raise ReadOnlyStoreError(self._ref.session_id, verbs.cancel.name)
        if run_id is None:
            info = self.ask(verbs.info())
            run_id = info.active_run_id
        if run_id is None:
            raise NoActiveRunError(self._ref.session_id)
        while (is_cancelled := self.ask(verbs.cancel(reason, run_id))) is None:
            pass
        return is_cancelled

    def end(self) -> None:
        """End the session, and wait until its active run has ended."""
        while not self.ask(verbs.end()):
            pass


def _poll(timeout_s: float | None, ask: Callable[[float | None], Waited[Answer]]) -> Answer:
    """Repeat a request until the wait is over, and return its answer; after `timeout_s`, return the last answer.

    Args:
        ask: makes the request, given how many seconds are left. A session answers after `SLICE_S` seconds at most.

    Raises:
        OverloadedError: too many other callers have been waiting for all of `timeout_s`, or for `REFUSED_S` without
            one.
    """
    began = time.monotonic()
    refused_at: float | None = None
    pauses = GrowingPauses(PAUSE_S, MOST_PAUSE_S)
    while True:
        left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        try:
            waited = ask(left_s)
        except OverloadedError:
            now = time.monotonic()
            refused_at = now if refused_at is None else refused_at
            until = refused_at + REFUSED_S if timeout_s is None else began + timeout_s
            if now >= until:
                raise
            steps.sleep(min(pauses.next_s(), until - now))
        else:
            if waited.is_over or (timeout_s is not None and time.monotonic() >= began + timeout_s):
                return waited.answer
            refused_at = None
            pauses.reset()
