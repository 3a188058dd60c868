"""What a session needs of an engine: a builder, and the runner that it builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from turnwise.memory.blocks import Block
from turnwise.memory.turns import Turn
from turnwise.memory.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """What an engine may know of the session it is built for."""

    session_id: str
    user_id: str
    agent: str | None
    metadata: Mapping[str, Any]


class RunContext(Protocol):
    """One run, as its engine sees it. After the run's end every verb here is a no-op: a late engine changes nothing."""

    @property
    def session(self) -> SessionView:
        """The session that the run belongs to."""

    @property
    def run_id(self) -> str:
        """The run."""

    @property
    def labels(self) -> Mapping[str, str]:
        """What the caller labelled the run with."""

    def emit(self, part: str | Block) -> None:
        """Stream a part of the answer: a string is text, `Text` and `Thinking` continue the block before them.

        Never blocks. What was emitted is what a cancelled or failed run keeps; a finished run keeps what its runner
        returns.
        """

    def report(self, *, usage: Usage | None = None, stop_reason: str | None = None) -> None:
        """Note what the provider said of this run: `usage` adds up, the last `stop_reason` stays."""


@runtime_checkable
class InferenceRunner(Protocol):
    """Answers turns of one session, one at a time."""

    async def run(self, turn: Turn, context: RunContext) -> Sequence[Block]:
        """Return the blocks to append: the answer to `turn`, at least one block.

        Cancelled by asyncio's cancellation: let it through after closing connections. A runner that holds it back is
        left behind after `SessionConfig.cancel_grace_s`, and what it returns is dropped. Raising fails this run only.
        """


@runtime_checkable
class Closable(Protocol):
    """A runner that holds connections may also have this."""

    async def close(self) -> None:
        """Let go of them: the runner is not used again."""


@runtime_checkable
class EngineBuilder(Protocol):
    """Makes the runner of a session. Travels to the session's process by pickle, so it holds settings, not clients."""

    def build(self, session: SessionView) -> InferenceRunner:
        """Return a runner. Called off the event loop, so it may import and block.

        A runner serves the session's runs in this process until the engine changes.
        """
