"""The rules of item stores: which items are valid, whose they are, and what a filter or a deletion means for them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, get_args

from turnwise.errors import ConfigError, InvalidIdError, InvalidInputError, InvalidMemoryError, shown
from turnwise.memory.longterm.base import MemoryItem, Scope, Status
from turnwise.memory.longterm.items.base import MAX_ID_BYTES, ItemFilter
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.values.ids import check_id


def owner_of(scope: Scope, type: MemoryType) -> str | None:
    """Return the agent that owns a new item of this type; None if all of the user's agents see it."""
    return None if type.category is MemoryCategory.SEMANTIC else scope.agent


def owner_after(scope: Scope, agent: str | None, before: str, after: MemoryType) -> str | None:
    """Return the agent that owns an item after a change of its type, given its agent and type before."""
    stays = before not in SEMANTIC and after not in SEMANTIC
    return agent if stays else owner_of(scope, after)


SEMANTIC = frozenset(kind for kind in MemoryType if kind.category is MemoryCategory.SEMANTIC)


TOMBSTONE_S = 90 * 86_400.0
"""How long a store knows the ids of deleted items and refuses items with these ids, in seconds.

A session whose process was lost may save an item again, when somebody next uses the session. Ids are dropped after this
time, since they would accumulate otherwise.
"""


def matches(item: MemoryItem, which: ItemFilter) -> bool:
    """Return whether the item matches the filter."""
    if which.types is not None and item.type not in which.types:
        return False
    if which.session_id not in (None, item.source.session_id) or which.turn_index not in (None, item.source.turn_index):
        return False
    if which.live_at is not None and not _is_live(item, which.live_at, which.as_of):
        return False
    if which.as_of is None:
        return which.superseded or item.superseded_at is None
    is_valid = which.superseded or item.superseded_at is None or item.superseded_at > which.as_of
    return item.created_at <= which.as_of and is_valid


def _is_live(item: MemoryItem, now: float, as_of: float | None) -> bool:
    is_expired = item.expires_at is not None and item.expires_at <= now
    return not is_expired and (as_of is not None or item.status != "resolved")


def is_of_later(item: MemoryItem, as_of: float | None) -> bool:
    """Return whether an item was changed after this time, so that nobody knows what it said then; never for None."""
    return as_of is not None and item.updated_at is not None and item.updated_at > as_of


def trouble_of_past(changed: int) -> str | None:
    """Return why a recall of a past time may lack items, given how many were changed since; None if it lacks none."""
    if not changed:
        return None
    items = "1 item of that time was" if changed == 1 else f"{changed} items of that time were"
    return f"{items} changed since and left out, since what was said before a change is not kept"


End: TypeAlias = tuple[float | None, str | None]
"""The time when an item was superseded, and the id of the item that replaced it."""

NO_END: End = (None, None)
"""The end of an item that is not superseded."""


def end_after_deletion(ends: Mapping[str, End], id: str, successor: str) -> End:
    """Return the new end of an item whose successor is deleted: the end of the first successor that stays.

    Args:
        ends: the ends of all items that are deleted together, by id.
    """
    end, by = ends[successor]
    for _ in ends:
        if by is None or by not in ends:
            return NO_END if by == id else (end, by)
        end, by = ends[by]
    return NO_END  # the deleted items superseded each other


def checked_item(scope: Scope, item: MemoryItem) -> MemoryItem:
    """Return the item as it is stored: checked, and without blocks and score.

    Raises:
        InvalidMemoryError: the item is invalid.
    """
    try:
        check_id("user", scope.user_id)
        if scope.agent is not None:
            check_id("agent", scope.agent)
        _check_names(item.id, item.source.session_id, item.superseded_by)
        aliases = tuple(_list(item.aliases))
        for text in (item.text, item.topic or "", item.name or "", *aliases):
            text.encode()
        if not all(name.strip() for name in (*aliases, *([] if item.name is None else [item.name]))):
            raise ValueError("its name or an alias is blank")
        if item.status not in get_args(Status):
            raise ValueError(f"its status is {item.status!r}: must be {' or '.join(get_args(Status))}")
        times = (item.created_at, item.updated_at or 0.0, item.superseded_at or 0.0, item.expires_at or 0.0)
        if isinstance(item.uses, bool) or not isinstance(item.uses, int) or item.uses < 0:
            raise ValueError(f"uses={str(item.uses)[:MAX_SHOWN]}: must be a whole number from 0")
        if not all(map(math.isfinite, times)):
            raise ValueError("a time is not finite")
        if not item.text.strip():
            raise ValueError("its text is blank")
        is_plain = isinstance(item.type, MemoryType) and isinstance(item.aliases, tuple)
        if is_plain and all(getattr(item, name) == value for name, value in _OF_RECALL.items()):
            return item
        return replace(item, type=MemoryType(item.type), aliases=aliases, **_OF_RECALL)
    except (InvalidIdError, ValueError, TypeError, AttributeError) as error:
        raise InvalidMemoryError(str(getattr(item, "id", item))[:MAX_SHOWN], str(error)) from error


_OF_RECALL: Mapping[str, Any] = {"blocks": (), "score": None, "words": (), "passage": None, "memory": None}
"""Fields of an item that are not stored: the input of `remember`, and the results of a recall."""


def _list(names: Sequence[str] | str) -> Sequence[str]:
    if isinstance(names, str):
        raise TypeError("its aliases are one text: pass a list of texts")  # each letter would be an alias
    return names


def check_turn(session_id: str | None, turn_index: int | None, ids: Collection[str] | None = None) -> None:
    """Raise InvalidInputError if a turn is given without its session or together with ids."""
    if turn_index is not None and session_id is None:
        raise InvalidInputError("turn_index", turn_index, "pass the session_id of the turn as well")
    if turn_index is not None and ids is not None:
        raise InvalidInputError("turn_index", turn_index, "pass either ids or a turn")


def checked_space(space: str) -> str:
    """Return the name of a space.

    Raises:
        ConfigError: it has other characters than those that each database takes in names, or none.
    """
    if not re.fullmatch(r"[\w.-]{1,64}", space, re.ASCII):
        raise ConfigError("space", space, "must be 1 to 64 letters, digits, '_', '.' or '-'")
    return space


def parse_position(cursor: str | None) -> int:
    """Return the position that a cursor of `scan` stands for; 0 for None.

    Raises:
        InvalidInputError: the cursor is invalid.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _POSITION_DIGITS):
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the previous page, unchanged")
    return int(cursor or 0)


_POSITION_DIGITS = 18
"""Digits that always fit in an 8-byte key."""


MAX_SHOWN = 80
"""The most characters of an id in an error message."""


def _check_names(*names: str | None) -> None:
    """Raise ValueError if a database could not store one of these ids unchanged."""
    for name in names:
        if name is not None and ("\0" in name or not name.strip()):
            raise ValueError(f"{name[:MAX_SHOWN]!r} is not an id: it is blank or contains NUL")
        if name is not None and (size := len(name.encode())) > MAX_ID_BYTES:
            raise ValueError(f"{name[:MAX_SHOWN]!r}... takes {size} bytes in UTF-8, and an id at most {MAX_ID_BYTES}")
