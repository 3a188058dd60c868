"""The newest blocks of a window that fit a request, where nothing can be stored or a strategy has failed."""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.errors import WindowOverflowError
from turnwise.memory.conversation.blocks import CacheCheckpoint, Summary, System, Unknown
from turnwise.memory.conversation.spans import Spans, join
from turnwise.strategies.ranges import Range
from turnwise.strategies.trim import trimmed
from turnwise.strategies.window import TokenBudget, Window


def newest_that_are_valid(window: Window, budget: TokenBudget) -> Spans:
    """Return the spans of the system prompt and the newest blocks that fit, with all summaries if there is room.

    Whole exchanges stay. If the newest one does not fit, its latest prompts stay, with all that follows them: a result
    always has its call. The window is over its budget, so something goes.

    Raises:
        WindowOverflowError: the last prompt of the newest exchange does not fit, with what follows it.
    """
    try:
        plan = trimmed(window, budget, budget.max_tokens, strategy="Trim")
        if plan is not None:
            return plan.spans(window)
    except WindowOverflowError:
        pass
    system = [] if window.system is None else [Range(window.system, window.system + 1)]
    for cut in _cuts(window):
        if budget.overhead + window.system_tokens + window.tokens(cut) <= budget.max_tokens:
            return join(window.spans_of(system), window.spans_of(window.kept_from(cut, pinned=False)))
    raise window.overflow(budget)


def without_former_systems(window: Window) -> Spans:
    """Return the spans of a window without the system prompts that a later one replaced."""
    system = [] if window.system is None else [Range(window.system, window.system + 1)]
    return join(window.spans_of(system), window.spans_of(window.without(Range(0, len(window)), System)))


def _cuts(window: Window) -> Iterator[int]:
    """Yield where the newest exchange begins, and each prompt after its first that no answer precedes."""
    yield window.newest.start
    for index in range(window.newest.start + 1, len(window)):
        block = window.block(index)
        if isinstance(block, System | Summary | CacheCheckpoint | Unknown):
            continue
        if block.role != "user":
            return
        yield index
