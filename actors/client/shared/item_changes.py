"""`checked_changes`: the changes of a memory item, checked in the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.actors.client.shared.arguments import ItemId, ItemStatus, Names, Text, Time, Type, check_names, checked
from turnwise.errors import InvalidInputError
from turnwise.memory.longterm.base import ItemChanges, Status
from turnwise.memory.longterm.memory_types import AnyType


def checked_changes(**changes: Any) -> dict[str, Any]:
    """Return the checked arguments of an update, without those that were omitted.

    Raises:
        InvalidInputError: an argument has the wrong type, or nothing is to be changed.
        TypeError: there is no such argument.
    """
    check_names("update()", changes, ["id", "text", "type", *ItemChanges.__annotations__])
    fields = _checked(**changes)
    if len(changes) == len(("id", "text", "type")) and fields["text"] is None and fields["type"] is None:
        raise InvalidInputError("text", None, "say what is to be changed: a text, a type, a topic, a name and so on")
    return {name: fields[name] for name in changes}


@checked(
    id=ItemId,
    text=Text | None,
    type=Type | None,
    topic=Text | None,
    name=Text | None,
    aliases=Names,
    status=ItemStatus,
    expires_at=Time | None,
)
def _checked(
    *,
    id: str,
    text: str | None,
    type: AnyType | None,
    topic: str | None = None,
    name: str | None = None,
    aliases: Sequence[str] = (),
    status: Status = "active",
    expires_at: float | None = None,
) -> dict[str, Any]:
    item = {"id": id, "text": text, "type": type, "topic": topic, "name": name, "aliases": aliases}
    return {**item, "status": status, "expires_at": expires_at}
