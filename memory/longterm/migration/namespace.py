"""`FlatNamespace`: one namespace with all memories of a user, of any type, as in LangGraph's stores."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from turnwise.errors import ConfigError
from turnwise.memory.values.ids import check_id

_USER = "{user}"


class FlatNamespace:
    """Finds the user of a namespace, and whether that user was requested.

    A prefix is a namespace whose segments are joined by dots, as stores have it. It is ambiguous if a segment contains
    a dot: `a.b.memories` belongs to the user `a.b`, or is a part of user `a`'s. A list of segments is not ambiguous.

    Args:
        name: the segments after the user, such as `memories`; or all segments with `{user}`, `memories.{user}`.
        users: the requested users; all if left out.

    Raises:
        ConfigError: the name has no segment besides the user, or `users` is a text.
        InvalidIdError: the name or a user is not a valid id.
    """

    def __init__(self, name: str, users: Collection[str] | None = None) -> None:
        check_id("namespace", name)
        pattern = name if _USER in name else f"{_USER}.{name}"
        self.before, _, self.after = pattern.partition(_USER)
        if not (self.before + self.after).strip(".") or _USER in self.after:
            raise ConfigError("namespace", name, "name the segment after the user, such as 'memories'")
        if isinstance(users, str):
            raise ConfigError("users", users, "pass a list, even for one user")
        self.users = None if users is None else frozenset(check_id("user", user) for user in users)

    @property
    def prefixes(self) -> list[str] | None:
        """The prefixes of the requested users, in order; None for all users."""
        return None if self.users is None else sorted(f"{self.before}{user}{self.after}" for user in self.users)

    def owner(self, place: str | Sequence[str]) -> str | None:
        """Return the user of a prefix or of segments; None if it is not of this namespace, or was not requested.

        The user of a prefix may be wrong if it contains a dot: see `is_ambiguous`.
        """
        prefix = place if isinstance(place, str) else ".".join(place)
        ends = len(prefix) - len(self.after)
        user = prefix[len(self.before) : ends]
        if prefix != f"{self.before}{user}{self.after}" or (self.users is not None and user not in self.users):
            return None
        return user if isinstance(place, str) or user in place else None

    def is_ambiguous(self, place: str | Sequence[str], user: str) -> bool:
        """Return whether the dots in this user of a prefix may separate segments."""
        return isinstance(place, str) and "." in user and self.users is None
