"""The bounds of the arguments of one call, and `check_count`, which refuses larger ones before reading their parts.

A session's process has one event loop for many users, and a store has one writer. So the arguments of a call are
bounded by number, not only by bytes: a million empty prompts take four megabytes and a minute. Arguments that may be
longer, such as a conversation to import, are sent in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from turnwise.errors import TooManyError

MAX_BLOCKS = 2_048
"""The most prompts of one `append` or `run`; the most messages, with their parts, of a request of OpenAI's dialects or
of one imported turn."""

MAX_WAITING_BLOCKS = 10_000
"""The most prompts of a session that wait for runs, in its queue and appended, together."""

MAX_BRANCHES = 500
"""The most branches of a session since its last `clear`, by `rerun` and `choose`; then `TooManyVersionsError`. Each
commit writes them, at some 12 bytes each."""

MAX_PROMPTS_BYTES = 16 << 20
"""The most bytes that the prompts of one call may take together, as UTF-8 JSON; `max_prompt_bytes` limits each."""

MAX_VALUES = 10_000
"""The most values within one JSON value, and within all blocks of one call: members of objects, elements of lists."""

MAX_MESSAGES = 100_000
"""The most messages of one import, which is stored in several commits."""

MAX_WINDOW_BLOCKS = 10_000
"""The most blocks of one request of a model. A conversation may be longer: its overflow strategy makes room; without
one, its runs fail with the code `window`."""

MAX_NAMES = 1_000
"""The most ids, names, aliases, labels or kinds of one argument."""


def check_count(field: str, count: int, limit: str, most: int) -> None:
    """Refuse an argument that has more parts than a bound allows.

    Args:
        limit: the bound's name.

    Raises:
        TooManyError: names the argument and the bound.
    """
    if count > most:
        raise TooManyError(field, count, limit, most)


def count_values(values: Iterable[object], most: int) -> int:
    """Return how many values there are in lists, mappings and models, these included. Stops soon after `most`."""
    waiting, count = list(values), 0
    while waiting and count <= most:
        value = waiting.pop()
        count += 1
        if isinstance(value, str):
            continue
        content = vars(value) if isinstance(value, BaseModel) else value
        if isinstance(content, Mapping | list | tuple):
            if len(content) > most:
                return count + len(content)
            waiting += content.values() if isinstance(content, Mapping) else content
    return count
