"""`StoreObject`: a store that a manager was given as an object, as its processes get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError
from turnwise.memory.longterm.base import is_local

if TYPE_CHECKING:
    from turnwise.actors.hosting.runtime import Runtime


@dataclass(frozen=True)
class StoreObject:
    """A store, or what makes one, as a runtime sends it: each process that uses the store makes its own."""

    argument: str
    """The argument of the manager: `store` or `history_store`."""
    kind: str
    """The name of its class or function."""
    digest: str
    """The same for equal settings."""
    data: bytes
    """What the runtime makes it from."""
    is_local: bool
    """Whether it opens a file of this machine, by its attribute `is_local`."""

    @classmethod
    def of(cls, argument: str, store: object, protocol: type, runtime: Runtime) -> StoreObject:
        """Return a store object as it travels.

        Args:
            store: an object that has the verbs of the protocol, or a callable without arguments that returns one.

        Raises:
            ConfigError: it has not all verbs of the protocol, keeps its content in one process, or cannot be sent.
        """
        if not callable(store) and not isinstance(store, protocol):
            raise ConfigError(argument, type(store).__name__, _lacks(store, protocol))
        kind = getattr(store, "__qualname__", type(store).__qualname__)
        if getattr(store, "is_in_process", False):
            raise ConfigError(argument, kind, _IN_PROCESS)
        try:
            return cls(argument, kind, runtime.identity(store)[:16], runtime.dumps(store), is_local(store))
        except Exception as error:
            reason = f"it cannot be pickled ({error}): hold settings in it and connect at first use, or pass a function"
            raise ConfigError(argument, kind, reason) from error

    @property
    def url(self) -> str:
        """A name in the place of a URL."""
        return f"object://{self.kind}-{self.digest}"

    def open(self, protocol: type, runtime: Runtime) -> Any:
        """Return the store in this process.

        Raises:
            ConfigError: it cannot be made here, or what was made is no such store.
        """
        try:
            store: Any = runtime.loads(self.data)
            if isinstance(store, type) or not isinstance(store, protocol):
                store = store()
        except Exception as error:
            reason = f"it cannot be made in a session's process ({type(error).__name__}: {error})"
            raise ConfigError(self.argument, self.kind, reason) from error
        if getattr(store, "is_in_process", False):
            raise ConfigError(self.argument, self.kind, _IN_PROCESS)
        if not isinstance(store, protocol):
            raise ConfigError(self.argument, type(store).__name__, _lacks(store, protocol))
        return store


def _lacks(store: object, protocol: type) -> str:
    verbs = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = ", ".join(sorted(name for name in verbs if not hasattr(store, name)))
    return f"is no {protocol.__name__}: it lacks {missing}; pass a URL, an object with these, or what returns one"


_IN_PROCESS = "has its content in one process, and sessions run in others: use memory://name"
