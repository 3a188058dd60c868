"""One attempt at an answer: run an engine until it ends, is cancelled, or takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.errors import EngineError
from turnwise.memory.blocks import Block, encode
from turnwise.memory.runs import RunState
from turnwise.memory.transcript import settle


class Attempted(Protocol):
    """What an attempt needs of its run."""

    cancelled: asyncio.Future[str]

    def close(self) -> list[Block]:
        """End the run's context and return what was emitted."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, and the blocks to keep of it, which leave the next request valid."""

    state: RunState
    why: str | None
    output: list[Block]


async def attempt(
    run: Attempted, answer: Callable[[], Awaitable[Sequence[Block]]], *, timeout_s: float | None, grace_s: float
) -> Ending:
    """Return how the run ended. Raises nothing.

    Ends at the answer, at the cancel or after `timeout_s`, whichever is first; an engine that does not stop then is
    left behind after `grace_s`, with a closed context. A cancel that meets the answer wins, and keeps the answer.
    """
    engine = asyncio.ensure_future(_checked(answer))
    first: set[asyncio.Future[Any]] = {engine, run.cancelled}
    await asyncio.wait(first, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    late = not engine.done() and not run.cancelled.done()
    if not engine.done():
        engine.cancel()
        await asyncio.wait({engine}, timeout=grace_s)
    if not engine.done():
        _LEFT_BEHIND.add(engine)
        engine.add_done_callback(_forget)
    emitted = [block for block in run.close() if _is_storable(block)]
    error = engine.exception() if engine.done() and not engine.cancelled() else None
    finished = engine.done() and not engine.cancelled() and error is None
    if run.cancelled.done():
        why = run.cancelled.result()
        return Ending("cancelled", why, settle(engine.result() if finished else emitted, why=why, interrupted=True))
    if finished and not late:
        return Ending("completed", None, settle(engine.result(), why="no result came", interrupted=False))
    if late:
        why = f"it took longer than timeout_s={timeout_s}"
    elif error:
        why = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    else:
        why = "the engine cancelled itself"
    why = storable(why)
    return Ending("failed", why, settle(emitted, why=why, interrupted=True))


_LEFT_BEHIND: set[asyncio.Future[list[Block]]] = set()
"""Engines that did not stop: held so that they are not collected while they run."""


def _forget(engine: asyncio.Future[list[Block]]) -> None:
    _LEFT_BEHIND.discard(engine)
    if not engine.cancelled():
        engine.exception()  # it comes too late to matter, and must not be reported as never retrieved


async def _checked(answer: Callable[[], Awaitable[Sequence[Block]]]) -> list[Block]:
    try:
        output = list(await answer())
    except (SystemExit, KeyboardInterrupt) as error:
        raise EngineError(f"the engine raised {type(error).__name__}") from error
    if not output or not all(isinstance(block, Block) and block.role in ("assistant", "tool") for block in output):
        raise EngineError("the engine returned no answer: return at least one block, all of an assistant or a tool")
    if not settle(output, why="", interrupted=False):
        raise EngineError("the engine returned thoughts but no answer")
    if not all(map(_is_storable, output)):
        raise EngineError("the engine returned text that is not valid Unicode: it holds lone surrogates")
    return output


def storable(text: str) -> str:
    """Return the text without lone surrogates, which no store and no provider takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _is_storable(block: Block) -> bool:
    try:
        encode(block)
    except ValueError:
        return False
    return True
