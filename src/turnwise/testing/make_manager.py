"""`MakeManager`: the type of the fixtures `turnwise_manager` and `async_turnwise_manager`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from turnwise.actors.inference.engine import EngineBuilder

Manager_co = TypeVar("Manager_co", covariant=True)


class MakeManager(Protocol[Manager_co]):
    """Makes a manager, a `SessionManager` or an `AsyncSessionManager`, which is closed after the test."""

    def __call__(self, engine: EngineBuilder | None = None, /, **settings: Any) -> Manager_co:
        """Return a manager whose sessions run in this process.

        Args:
            engine: answers the turns; `EchoEngine()` if omitted.
            settings: see `SessionManager`. The store is the test's, which all its managers share, if no other is given.
        """
