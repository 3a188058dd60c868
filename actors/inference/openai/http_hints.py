"""`HTTPHints`: hints to a server's cache by HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from turnwise.actors.inference.openai.settings import check, check_url, http_client
from turnwise.actors.inference.replicas import Replicas
from turnwise.memory.values.frozen_json import freeze
from turnwise.memory.values.ranges import check_seconds

Hint = Literal["hold", "drop", "prefetch", "prioritize"]

_HINTS: tuple[Hint, ...] = get_args(Hint)


@dataclass(frozen=True)
class HTTPHints:
    """Sends hints as `POST`, with the key, and `seconds` or `priority`, as a JSON object.

    With `Replicas`, a hint goes where a request with its key would go now.
    """

    server: str | Replicas
    """The URL before the paths, or the replicas of the engine."""
    paths: Mapping[Hint, str] = field(default_factory=lambda: {name: f"/cache/{name}" for name in _HINTS}, kw_only=True)
    """The path of each hint, from the server's URL; hints without a path are not sent."""
    headers: Mapping[str, str] | None = field(default=None, repr=False, kw_only=True)
    """Headers of each request, such as a token."""
    timeout_s: float = field(default=1.0, kw_only=True)
    """The time limit of a request, in seconds."""

    def __post_init__(self) -> None:
        if isinstance(self.server, str):
            check_url("HTTPHints.server", self.server)
        unknown = sorted(set(self.paths) - set(_HINTS))
        check("HTTPHints.paths", unknown, not unknown, f"must be of {', '.join(_HINTS)}")
        check_seconds("HTTPHints.timeout_s", self.timeout_s, may_be_0=False)
        object.__setattr__(self, "paths", freeze(self.paths))
        object.__setattr__(self, "headers", freeze(self.headers))

    async def hold(self, key: str, seconds: float) -> None:
        await self._send("hold", {"key": key, "seconds": seconds})

    async def drop(self, key: str) -> None:
        await self._send("drop", {"key": key})

    async def prefetch(self, key: str) -> None:
        await self._send("prefetch", {"key": key})

    async def prioritize(self, key: str, priority: int) -> None:
        await self._send("prioritize", {"key": key, "priority": priority})

    async def _send(self, hint: Hint, body: Mapping[str, Any]) -> None:
        if hint not in self.paths:
            return
        url = self.server if isinstance(self.server, str) else self.server.candidates(body["key"])[0]
        async with http_client() as client:
            answer = await client.post(
                url.rstrip("/") + self.paths[hint], json=body, headers=self.headers, timeout=self.timeout_s
            )
            answer.raise_for_status()
