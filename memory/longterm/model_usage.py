"""Tells the caller of a memory what the memory's model calls have spent, in whichever process they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from turnwise.memory.conversation.usage import Usage

Bill = Callable[[Usage, str | None], object]
"""Called with usage and the name of its model (None if unknown)."""

_bill: ContextVar[Bill | None] = ContextVar("turnwise_model_usage", default=None)


@contextmanager
def billed_to(bill: Bill) -> Iterator[None]:
    """Have `bill` called with the usage of all model calls that memories make in this context.

    Tasks that are started in it belong to it, threads of `asyncio.to_thread` too.
    """
    token = _bill.set(bill)
    try:
        yield
    finally:
        _bill.reset(token)


def bill_model_usage(usage: Usage, model: str | None) -> None:
    """Tell the caller of the memory what a model call has spent; nobody outside of `billed_to`."""
    if bill := _bill.get():
        bill(usage, model)
