"""Packed hosts without a cluster: on a loop with virtual time, over a store in memory."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.hosting.packed_host import NextHosts, PackedHost, PreviousHost
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import Refused, SessionRef, Waited
from turnwise.actors.hosting.worker_resources import SessionSetup, WorkerResources
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.runs import OPEN_STATES
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.testing.schedules import inline

if TYPE_CHECKING:
    from turnwise.actors.session.runs.admission import StartOptions


class OpenResources(WorkerResources):
    """Resources that are there already, so that no thread is needed."""

    def __init__(self, store: Any, setups: dict[str, SessionSetup], engine_id: str) -> None:
        super().__init__(lambda: store, lambda: None, engine_id, b"")
        self._opened = store, None
        self._setups.update(setups)
        self._pickled.update(dict.fromkeys(setups, b""))

        self.sent: dict[bytes, SessionSetup] = {}
        """What a manager sends, by what stands for its pickle."""

    async def open(self) -> Any:
        return self._stores[0]

    async def load(self, session_id: str, engine_id: str, engine: bytes) -> None:
        if not self.has(engine_id):
            await asyncio.sleep(0)
            self.cache(session_id, engine_id, self.sent[engine], engine)

    def make_core(self, key: SessionKey, override: EngineOverride) -> SessionCore:
        store, _ = self._stores
        builder, config, *_ = self.get(override.engine_id)[0]
        clock = asyncio.get_running_loop().time
        core = SessionCore(key, store, builder, config, clock=clock, off_loop=inline, engine_id=override.engine_id)
        self.assign_runs(core, override)
        return core


class Hosting:
    """A packed host, the requests of callers, and the overrides that it has noted for its next process."""

    def __init__(
        self,
        store: Any,
        engine: EngineBuilder,
        limits: Packed | None = None,
        *,
        config: SessionConfig | None = None,
        other_engines: Mapping[str, EngineBuilder] | None = None,
        previous_hosts: Sequence[PreviousHost] = (),
        next_hosts: NextHosts | None = None,
        overrides: dict[SessionKey, EngineOverride] | None = None,
    ) -> None:
        self.store = store
        self.config = config or SessionConfig(idle_s=1e9, cancel_grace_s=0.5)
        engines = {"first": engine, **(other_engines or {})}
        setups: dict[str, SessionSetup] = {
            name: (engine_of_name, self.config, None, (), None) for name, engine_of_name in engines.items()
        }
        self.overrides: dict[SessionKey, EngineOverride] = overrides if overrides is not None else {}
        self.has_left = asyncio.Event()
        self._resources = OpenResources(store, setups, "first")
        self.sent = self._resources.sent
        self.host = PackedHost(
            self._resources,
            limits or Packed(hosts=1),
            node_id="here",
            save_override=self._save_override,
            drop_override=self._drop,
            leave=self.has_left.set,
            overrides=dict(self.overrides),
            previous_hosts=previous_hosts,
            next_hosts=next_hosts,
        )

    @property
    def residents(self) -> list[str]:
        """The ids of the sessions that are loaded, least recently used first."""
        return [key.session_id for key in self.host.residents]

    def bring(self, engine_id: str, engine: EngineBuilder) -> None:
        """Have another manager's engine come by, as for a session that takes it over."""
        self._resources.cache("another", engine_id, (engine, self.config, None, (), None), b"")

    async def create(self, *session_ids: str) -> None:
        for session_id in session_ids:
            await getattr(self.store, "inner", self.store).create(SessionRecord(session_id=session_id))

    async def ask(
        self, session: str | SessionRef, call: VerbCall[Any], engine_id: str = "", engine: bytes = b""
    ) -> Any:
        """Return the answer, or raise the error of a refusal. A session has an id, or also a user and a log."""
        ref = SessionRef(SessionKey(session)) if isinstance(session, str) else session
        return answer_of(await self.host.call(call.to(ref, engine_id, engine).pickled()))

    async def start(
        self, session: str | SessionRef, prompt: str, run_id: str, engine_id: str = "", **settings: Any
    ) -> Any:
        options = cast("StartOptions", {"run_id": run_id, **settings})
        return await self.ask(session, verbs.start((prompt,), options, ()), engine_id)

    async def run(self, session: str | SessionRef, prompt: str, run_id: str, **settings: Any) -> Any:
        """Start a run and wait for its outcome."""
        await self.start(session, prompt, run_id, **settings)
        while (outcome := await self.ask(session, verbs.wait(None, run_id, ()))).state in OPEN_STATES:
            pass
        return outcome

    def _drop(self, key: SessionKey) -> None:
        self.overrides.pop(key, None)

    async def _save_override(self, key: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]) -> None:
        self.overrides[key] = override


def answer_of(answer: bytes) -> Any:
    """Return the answer of a host, without whether the wait is over; raise the error of a refusal."""
    unpickled = pickle.loads(answer)
    if isinstance(unpickled, Refused):
        raise unpickled.error
    return unpickled.answer if isinstance(unpickled, Waited) else unpickled


async def refused(kind: type[TurnwiseError], answer: Any) -> TurnwiseError:
    """Return the error of this kind that an answer is."""
    try:
        outcome = await answer
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, and not {outcome}")
