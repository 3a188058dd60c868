"""A flat namespace: where stores such as LangGraph's keep all memories of a user, of whatever kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from turnwise.errors import ConfigError
from turnwise.memory.conversation.ids import check_id

_USER = "{user}"


class FlatNamespace:
    """Tells whose memories stand under a namespace, and whether they are wanted.

    A store joins the segments of a namespace by dots, and so does the prefix that is spoken of here. A dot in a segment
    looks the same, so that `a.b.memories` is that of the user `a.b` or is below another user's `a`. A list of segments
    says which it is, a prefix does not.

    Args:
        name: what follows the user, `memories`; or the whole with the user as `{user}`, `memories.{user}`.
        users: whose memories are wanted; everybody's if left out.

    Raises:
        ConfigError: the name has no text besides the user, or the users are a text.
        InvalidIdError: the name or a user cannot be one.
    """

    def __init__(self, name: str, users: Collection[str] | None = None) -> None:
        check_id("namespace", name)
        whole = name if _USER in name else f"{_USER}.{name}"
        self.before, _, self.after = whole.partition(_USER)
        if not (self.before + self.after).strip(".") or _USER in self.after:
            raise ConfigError("namespace", name, "name the segment behind the user, as in 'memories'")
        if isinstance(users, str):
            raise ConfigError("users", users, "pass a list of them, also of one")
        self.users = None if users is None else frozenset(check_id("user", user) for user in users)

    @property
    def prefixes(self) -> list[str] | None:
        """The prefixes of those who are wanted, in order; None if it is everybody."""
        return None if self.users is None else sorted(f"{self.before}{user}{self.after}" for user in self.users)

    def owner(self, place: str | Sequence[str]) -> str | None:
        """Return whose memories these are, of a prefix or of segments; None if they are not wanted.

        A user with a dot in it may be a mistake if `place` is a prefix; see `is_ambiguous`.
        """
        prefix = place if isinstance(place, str) else ".".join(place)
        ends = len(prefix) - len(self.after)
        user = prefix[len(self.before) : ends]
        if prefix != f"{self.before}{user}{self.after}" or (self.users is not None and user not in self.users):
            return None
        return user if isinstance(place, str) or user in place else None

    def is_ambiguous(self, place: str | Sequence[str], user: str) -> bool:
        """Return whether nobody has said that the dots of this user are the user's own."""
        return isinstance(place, str) and "." in user and self.users is None
