"""`Runtime`: where the sessions, memories and stores of a manager live: in actors of a Ray cluster, or in this process.

A client asks sessions and memories through the protocols below, so it imports no Ray, and neither does this room.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from turnwise.actors.hosting.reach import Reach
    from turnwise.actors.hosting.store_spec import StoreSpec
    from turnwise.actors.hosting.wire import DrainReport, HostInfo
    from turnwise.actors.hosting.worker_resources import SessionSetup
    from turnwise.memory.conversation.sessions import SessionKey
    from turnwise.memory.longterm.base import LongTermMemory
    from turnwise.memory.stores.base import SessionStore
    from turnwise.memory.stores.store_owner import StoreOwner


class CallError(Exception):
    """A request was not answered, and would not be in any process of the session. The message says why."""


class AwayError(CallError):
    """A process has died, or cannot be reached, before it answered. Another one may answer."""


class SessionProcess(Protocol):
    """The process that hosts a session."""

    @property
    def actor(self) -> Any:
        """Ray's handle of it.

        Raises:
            ConfigError: it is no actor.
        """

    async def ask(self, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
        """Return the answer to a request. Cancelling the wait cancels nothing in the process.

        Args:
            is_repeatable: whether the request may be carried out twice. If not, it is sent once only.

        Raises:
            TimeoutError: the caller's own time is over; see `Reach`.
            CallError: there is no answer.
        """

    def ask_blocking(self, request: bytes, reach: Reach, *, is_repeatable: bool) -> bytes:
        """Return the answer to a request as `ask` does. This thread waits itself, without an event loop."""


class SessionProcesses(Protocol):
    """Finds, or starts, the processes of a store's sessions."""

    def of(self, key: SessionKey) -> SessionProcess:
        """Return the process of a session, started if it does not run; does not wait for its start."""

    def invalidate(self, key: SessionKey) -> None:
        """Search again at the next call, since the process was lost or no longer hosts the session."""

    def warm(self, key: SessionKey, request: bytes) -> None:
        """Start the session's process and load the session, if it has one of its own; does not wait for it."""

    def is_live(self, key: SessionKey) -> bool:
        """Return whether a process exists that may host the session; a known one counts until `invalidate`."""

    async def loaded(self, keys: Collection[SessionKey]) -> Collection[SessionKey]:
        """Return those of these sessions that a process has loaded, or may have, if it does not answer.

        Others may be loaded as this returns, which the store notes as an activation.
        """

    async def close(self) -> None:
        """Note that the manager is closed. Sessions and their runs continue. May be called twice."""


class DeliveryLook(Protocol):
    """A look for deliveries in a store, beside a manager that opens it."""

    async def close(self) -> None:
        """Return once it is done; end it if that takes long. May be called twice."""


class MemoryProcess(Protocol):
    """The process that has a long-term memory. Pickles, if sessions live in other processes."""

    id: str
    """The same for equal settings."""

    async def ask(self, request: bytes, *, is_recall: bool) -> bytes:
        """Return the answer of the memory's host.

        Raises:
            LongTermMemoryError: the process cannot be reached.
        """

    def warm(self, request: bytes) -> None:
        """Start the process, and send a request without waiting for its answer."""


class Runtime(Protocol):
    """Where one manager's sessions, memories and stores in memory live."""

    @property
    def owner(self) -> StoreOwner:
        """Who opens a store here, as others that share it are told. Connect first."""

    def connect(self, stores: Sequence[object], notes: object) -> None:
        """Connect this process; start what has to be started. Blocks; may be repeated.

        Args:
            stores: the arguments `store` and `history_store` of the manager.
            notes: its argument `working_memory`.

        Raises:
            ConfigError: it cannot be joined or started, or one of these cannot be used there.
            StoreError: the folder of a file is missing.
        """

    def starting(self) -> AbstractContextManager[None]:
        """Return a context that the caller's own thread enters while `connect` runs on another."""

    def identity(self, value: object) -> str:
        """Return a digest that equal settings share; see `identity`.

        Raises:
            Exception: it cannot be told.
        """

    def dumps(self, value: object) -> bytes:
        """Return what this runtime's processes make a value from.

        Raises:
            Exception: it cannot be sent to them.
        """

    def loads(self, data: bytes) -> Any:
        """Return the value of `dumps` in this process."""

    def setup_of(self, setup: SessionSetup) -> tuple[str, bytes]:
        """Return the id of a manager's setup, and what `loads` makes it from.

        Sessions switch to the setup of the manager that starts a run, if it has another id than theirs.

        Raises:
            Exception: it cannot be sent to this runtime's processes.
        """

    def processes(self, store_id: str, place: StoreSpec, setup: tuple[str, bytes]) -> SessionProcesses:
        """Return what finds the processes of a store's sessions, and starts those that all sessions share."""

    def look_for_deliveries(self, store_id: str, place: StoreSpec, setup: tuple[str, bytes]) -> DeliveryLook | None:
        """Have the deliveries that wait in the store carried out; does not wait. None if there is nothing to do.

        Also says that sessions' processes start as this manager starts them, from now on.
        """

    def announce_quotas(self, store_id: str) -> None:
        """Say that quotas of a store were changed. Does not wait.

        Processes of other runtimes notice by themselves: see `QuotaBook`.
        """

    def announce_webhooks(self, store_id: str) -> None:
        """Say that webhooks of a store were changed, or that their calls are due again. Does not wait.

        Processes that it does not reach notice within a minute.
        """

    def live_processes(self, store_id: str) -> SessionProcesses:
        """Return what finds running processes only, for a client that may start none."""

    def memory_process(self, memory: LongTermMemory) -> MemoryProcess:
        """Return the process of a memory: managers that pass equal settings share it.

        Raises:
            ConfigError: the memory cannot be sent there.
        """

    def open_shared_store(self, url: str) -> SessionStore:
        """Return the store `memory://name` that all processes of this runtime's namespace share."""

    def has_shared_store(self, url: str) -> bool:
        """Return whether that store was made already."""

    async def hosts(self, store_id: str) -> list[HostInfo]:
        """Return the processes that host the store's sessions, and their current load."""

    async def drain(self, node_id: str | None, timeout_s: float) -> DrainReport:
        """Have all processes leave a node, this process's if omitted, within a time for runs to end.

        Raises:
            ConfigError: there is no such node, or it cannot be drained.
        """
