"""What a request says and what is answered: `Whose`, the paths of routes, and `Answer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from turnwise.errors import InvalidInputError, shown

ON_BEHALF_OF = "X-Turnwise-User"
"""The header that names the user for whom a request is made; see `turnwise.http.service`."""

REQUEST_ID, IF_UNKNOWN = "X-Turnwise-Request", "X-Turnwise-If-Unknown"
"""The headers that name a request, and say what becomes of a repeated one; see `turnwise.http.repeats`."""

KEY = "Idempotency-Key"
"""The header of a request whose effect the service's store identifies by a key."""


@dataclass(frozen=True)
class Whose:
    """For whom a request is made, and whose session it is about."""

    user_id: str | None = None
    """None: the user of the token."""
    owner: str | None = None
    """The user who shares the session with `user_id`; None: it is the user's own."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say it."""
        return {} if self.user_id is None else {ON_BEHALF_OF: quote(self.user_id, safe="")}


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    data: Any
    """Its JSON; None if it has none."""
    attempts: int = 1
    """How often the request was sent."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a route."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    """Names with values; those that are None are left out."""
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Callable[[], Any] | None = None
    """Returns the bytes to send instead of `body`, as often as the request is sent."""
    is_read: bool = False
    """Whether it changes nothing, so that the service need not remember its answer; a GET never does."""
    is_sent_once: bool = False
    """Whether its content can be read once only, so that it is never sent again."""
    is_repeatable: bool = True
    """Whether carrying it out twice does the same as once.

    If not, it is repeated only where the process of the service that has carried it out remembers the answer.
    """
    wait_s: float = 0.0
    """How long the service may wait before it answers."""


def path_of(*segments: str | int) -> str:
    """Return the path of a route; ids are percent-encoded.

    Raises:
        InvalidInputError: an id is `.` or `..`, which clients of HTTP remove from paths.
    """
    for segment in segments:
        if segment in (".", ".."):
            raise InvalidInputError("id", shown(segment), "it cannot be addressed over HTTP: use another id")
    return "/v1/" + "/".join(quote(str(segment), safe="") for segment in segments)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


MOST, MOST_HITS = 1_000, 100
"""How many items, and how many hits of a search, a page over HTTP has at most."""


def most(limit: int, bound: int = MOST) -> int:
    """Return how many items to ask for."""
    return min(limit, bound)
