"""`AsyncSessionHost`: asks the actor that hosts a session, and asks again until one answers."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ray.exceptions import GetTimeoutError, RayError

from turnwise.actors.client import steps
from turnwise.actors.client.shared.cluster_client import ClusterClient
from turnwise.actors.client.shared.reaching import Search, is_away, lost
from turnwise.actors.cluster.reach import NoProcessError
from turnwise.actors.cluster.wire import (
    READS,
    ClientOutcome,
    EngineWanted,
    PackedOutcome,
    PackedTurn,
    Refused,
    SessionRef,
    StartAnswer,
    StartedRun,
    StillEnding,
)
from turnwise.actors.hosting.waits import SLICE_S
from turnwise.errors import OverloadedError, ReadOnlyStoreError, SessionFencedError
from turnwise.memory.conversation.events import AnyEvent
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.runs import Until, has_reached
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.longterm.deletion_report import Forgotten
from turnwise.strategies.compaction import Compaction

ANSWER_S = 1.0
"""How many seconds a caller waits for an answer beyond the wait's own timeout."""

REFUSED_S = 60.0
"""How long a caller without a timeout retries a wait that the host refuses before OverloadedError, in seconds."""

PAUSE_S, MOST_PAUSE_S = 0.05, 5.0
"""The first and the longest pause after such a refusal, in seconds."""

Answer = TypeVar("Answer")


class AsyncSessionHost:
    """Asks the host of one session, on behalf of a client."""

    __slots__ = ("_client", "_ref")

    def __init__(self, client: ClusterClient, ref: SessionRef) -> None:
        self._client = client
        self._ref = ref

    async def ask(self, verb: str, *args: Any, timeout_s: float | None = None, with_engine: bool = False) -> Any:
        """Call one verb of the session's host, and repeat the call after crashes, restarts and moves until it answers.

        So a verb may be carried out twice; every verb is idempotent. Only this method turns Ray's exceptions into
        turnwise's.

        Args:
            with_engine: the verb uses an engine and a strategy: the client's, which are sent to the session if it has
                others. If no manager is open in this process, the session uses its current ones.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            ReadOnlyStoreError: the manager is read-only, and the verb changes something.
            SessionLostError: no process of the session could be reached for `REACH_S` seconds.
            TurnwiseError: the host refused the request.
        """
        client, ref = self._client, self._ref
        if client.read_only and verb not in READS:
            raise ReadOnlyStoreError(ref.session_id, verb)
        request = client.pack(ref, verb, *args, with_engine=with_engine)
        search = Search(ref.session_id)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if verb in READS and client.has_store and not client.is_live(ref):
                stored = await self._read(verb, args)
                # A run may have started meanwhile, whose deltas the store does not have.
                if stored is not None and not (verb == "events" and client.is_live(ref)):
                    return stored[0]
            reach = search.begin_call(until)
            try:
                packed = await steps.call(client.actor(ref), request, reach, is_shared=client.lookup.is_shared)
            except GetTimeoutError as error:
                raise TimeoutError(f"no answer within {timeout_s} s") from error
            except (NoProcessError, RayError) as error:
                if not is_away(error):
                    client.lookup.invalidate(ref.key)  # the next request may make another actor
                    raise lost(ref.session_id, verb, error) from error
                failure: Exception = error
            else:
                answer = pickle.loads(packed)
                if isinstance(answer, EngineWanted):
                    request = client.pack_engine(ref, verb, *args)
                    search = Search(ref.session_id)
                    continue
                if not isinstance(answer, Refused):
                    return answer
                if not isinstance(answer.error, SessionFencedError):
                    raise answer.error
                failure = answer.error  # that process no longer owns the session; look for the one that does
            client.lookup.invalidate(ref.key)
            await steps.sleep(search.pause_after(failure))

    async def _read(self, verb: str, args: Sequence[Any]) -> tuple[Any] | None:
        """Return the answer to a read from the store, in a tuple; None if only the session's process can answer.

        Reading from the store does not interrupt runs of another Ray. It cannot answer a wait for a run whose process
        died: a new process of the session must end or resume that run first.
        """
        from turnwise.actors.hosting.reader import Reader, check_stored
        from turnwise.actors.hosting.stored_session import StoredSession, UnattendedError

        client, ref = self._client, self._ref
        stored = StoredSession(ref.key, *client.stores, raises_unattended=not client.read_only)
        try:
            if ref.log:
                await steps.run(client.portal, check_stored, client.stores[0], ref.key, ref.log)
            return (await steps.run(client.portal, Reader(lambda: stored).answer, verb, args),)
        except UnattendedError:
            return None

    async def start(self, prompts: tuple[Any, ...], settings: dict[str, Any]) -> StartedRun:
        """Start a run with the client's engine; the engine is sent first if the session has another."""
        cache = self._client.cache(self._ref)
        started: StartAnswer = await self.ask("start", prompts, settings, cache.held, with_engine=True)
        outcome = self._client.outcome(started.outcome, cache) if started.outcome else None
        return StartedRun(started.run_id, started.turn_index, outcome, started.dropped)

    async def check_start(self, prompts: tuple[Any, ...], settings: dict[str, Any]) -> str | None:
        """Check a run, as `start` would with the client's engine; see `RunAdmission.check_start`."""
        answer: tuple[str | None] = await self.ask("check_start", prompts, settings, with_engine=True)
        return answer[0]

    async def compact(self, *, explain: bool) -> Compaction | None:
        """Compact the session's window with the client's strategy."""
        answer: tuple[Compaction | None] = await self.ask("compact", explain, with_engine=True)
        return answer[0]

    async def window(self, message: str | None) -> Turn | None:
        """Read the blocks of the session's next request, which fit the window of the client's engine."""
        cache = self._client.cache(self._ref)
        answer: tuple[PackedTurn | None] = await self.ask("window", cache.held, message, with_engine=True)
        return self._client.unpack(answer[0], cache) if answer[0] else None

    async def delete(self, *, memory: bool, verify: bool, updated_at: float | None = None) -> Forgotten:
        """Delete the session; if `memory` is set, the client's memories forget it too."""
        done: Forgotten
        if memory:
            done = await self.ask("delete", memory, verify, updated_at, with_engine=True)
        else:
            done = await self.ask("delete", "", memory, verify, updated_at)
        self._client.drop(self._ref)
        return done

    async def clear(self, keep_last: int, *, memory: bool, verify: bool, updated_at: float | None = None) -> Forgotten:
        """Remove the session's older turns from its history; if `memory` is set, the client's memories forget them."""
        what = (keep_last, memory, verify, updated_at, new_id())
        done: Forgotten = await self.ask("clear", *what, with_engine=True)
        self._client.drop(self._ref)
        return done

    async def forget_turn(self, index: int, *, verify: bool) -> Forgotten:
        """Remove a turn from the session's window and from the client's memories."""
        done: Forgotten = await self.ask("forget_turn", index, verify, with_engine=True)
        return done

    async def call_memory(self, verb: str, *args: Any, **options: Any) -> Any:
        """Call a verb of the session's memory access, with the client's memories."""
        (answer,) = await self.ask("memory", verb, args, options, with_engine=True)
        return answer

    async def wait(self, run_id: str, timeout_s: float | None, until: Until) -> ClientOutcome:
        """Wait until a run has ended, or is suspended; return how it stands then, or after `timeout_s` seconds.

        Raises:
            TimeoutError: the session's process has not answered by then.
        """
        cache = self._client.cache(self._ref)

        async def ask(left_s: float | None) -> PackedOutcome:
            limit_s = None if left_s is None else left_s + ANSWER_S
            packed: PackedOutcome = await self.ask("wait", run_id, left_s, cache.held, until, timeout_s=limit_s)
            return packed

        outcome = await _poll(timeout_s, ask, lambda answer: has_reached(answer.state, until))
        return self._client.outcome(outcome, cache)

    async def follow(
        self, after: int, limit: int, run_id: str | None, timeout_s: float | None = None
    ) -> tuple[list[AnyEvent], int, bool]:
        """Wait for events of a run, or of the whole session, up to `timeout_s` seconds; see `SessionReads.events`."""

        async def ask(left_s: float | None) -> tuple[list[AnyEvent], int, bool]:
            slice_s = SLICE_S if left_s is None else min(left_s, SLICE_S)
            page: tuple[list[AnyEvent], int, bool] = await self.ask("events", after, limit, run_id, slice_s)
            return page

        return await _poll(timeout_s, ask, lambda page: page[2] or page[1] > after)

    async def wait_for_memory(self, timeout_s: float | None) -> bool:
        """Wait until the client's memories have received the session's turns; return False after `timeout_s`."""

        async def ask(left_s: float | None) -> tuple[bool | None]:
            done: tuple[bool | None] = await self.ask("wait_for_memory", left_s, with_engine=True)
            return done

        (done,) = await _poll(timeout_s, ask, lambda answer: answer[0] is not None)
        return bool(done)

    async def cancel(self, reason: str, run_id: str | None = None) -> bool:
        """Cancel a run, by default the active one, and wait for its end; return whether it ended as cancelled."""
        while True:
            answer: bool | StillEnding = await self.ask("cancel", reason, run_id)
            if not isinstance(answer, StillEnding):
                return answer
            run_id = answer.run_id  # name the run, since another may be active by now

    async def end(self) -> None:
        """End the session, and wait until its active run has ended."""
        while not await self.ask("end"):
            pass


async def _poll(
    timeout_s: float | None,
    ask: Callable[[float | None], Awaitable[Answer]],
    is_there: Callable[[Answer], object],
) -> Answer:
    """Repeat a request until `is_there(answer)`, and return that answer; after `timeout_s`, return the last answer.

    Args:
        ask: makes the request, given how many seconds are left. A session answers after `SLICE_S` seconds at most.

    Raises:
        OverloadedError: too many other callers have been waiting for all of `timeout_s`, or for `REFUSED_S` without
            one.
    """
    began = time.monotonic()
    refused_at: float | None = None
    pause_s = PAUSE_S
    while True:
        left_s = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        try:
            answer = await ask(left_s)
        except OverloadedError:
            now = time.monotonic()
            refused_at = now if refused_at is None else refused_at
            until = refused_at + REFUSED_S if timeout_s is None else began + timeout_s
            if now >= until:
                raise
            # A random pause, so that callers that were refused together do not retry together.
            await steps.sleep(min(pause_s * random.uniform(0.5, 1.0), until - now))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        else:
            if is_there(answer) or (timeout_s is not None and time.monotonic() >= began + timeout_s):
                return answer
            refused_at, pause_s = None, PAUSE_S
