"""`StoreObject`: a store that a manager was given as an object, as its processes get it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from ray import cloudpickle

from turnwise.actors.cluster.identity import identity
from turnwise.errors import ConfigError
from turnwise.memory.longterm.base import is_local


@dataclass(frozen=True, slots=True)
class StoreObject:
    """A pickled store, or what makes one: each process that uses the store unpickles it."""

    argument: str
    """The argument of the manager: `store` or `history_store`."""
    kind: str
    """The name of its class or function."""
    digest: str
    """The same for equal settings."""
    pickled: bytes
    is_local: bool
    """Whether it opens a file of this machine, by its attribute `is_local`."""

    @classmethod
    def of(cls, argument: str, given: object, protocol: type) -> StoreObject:
        """Return a store object as it travels.

        Args:
            given: an object that has the verbs of the protocol, or a callable without arguments that returns one.

        Raises:
            ConfigError: it has not all verbs of the protocol, keeps its content in one process, or cannot be pickled.
        """
        if not callable(given) and not isinstance(given, protocol):
            raise ConfigError(argument, type(given).__name__, _lacks(given, protocol))
        kind = getattr(given, "__qualname__", type(given).__qualname__)
        if getattr(given, "is_in_process", False):
            raise ConfigError(argument, kind, _IN_PROCESS)
        try:
            return cls(argument, kind, identity(given)[:16], cloudpickle.dumps(given), is_local(given))
        except Exception as error:
            reason = f"it cannot be pickled ({error}): hold settings in it and connect at first use, or pass a function"
            raise ConfigError(argument, kind, reason) from error

    @property
    def url(self) -> str:
        """A name in the place of a URL."""
        return f"object://{self.kind}-{self.digest}"

    def open(self, protocol: type) -> Any:
        """Return the store in this process.

        Raises:
            ConfigError: it cannot be made here, or what was made is no such store.
        """
        try:
            found: Any = pickle.loads(self.pickled)
            if isinstance(found, type) or not isinstance(found, protocol):
                found = found()
        except Exception as error:
            reason = f"it cannot be made in a session's process ({type(error).__name__}: {error})"
            raise ConfigError(self.argument, self.kind, reason) from error
        if getattr(found, "is_in_process", False):
            raise ConfigError(self.argument, self.kind, _IN_PROCESS)
        if not isinstance(found, protocol):
            raise ConfigError(self.argument, type(found).__name__, _lacks(found, protocol))
        return found


def _lacks(given: object, protocol: type) -> str:
    verbs = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = ", ".join(sorted(name for name in verbs if not hasattr(given, name)))
    return f"is no {protocol.__name__}: it lacks {missing}; pass a URL, an object with these, or what returns one"


_IN_PROCESS = "has its content in one process, and sessions run in others: use memory://name"
