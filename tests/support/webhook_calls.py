"""Checks what a webhook's receiver was told: each run that completed, at least once, always with one id."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

Request = tuple[str, dict[str, str], bytes]
"""The path, headers and body of a request."""


class ToldRuns:
    """Which runs a receiver was told of, by the calls that it has got."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.broken: list[str] = []
        """Calls whose repetition has another body."""
        self._ids: dict[str, set[str]] = {}
        bodies: dict[str, bytes] = {}
        for _, headers, body in requests:
            message_id = headers["webhook-id"]
            if bodies.setdefault(message_id, body) != body:
                self.broken.append(f"call {message_id} of a webhook came again with another body")
            self._ids.setdefault(json.loads(body)["data"]["run_id"], set()).add(message_id)

    def missing(self, run_ids: Collection[str]) -> list[str]:
        """Return those of some runs of which the receiver was not told."""
        return [run_id for run_id in run_ids if run_id not in self._ids]

    def doubled(self, run_ids: Collection[str]) -> list[str]:
        """Return those of some runs of which the receiver was told by several calls, each with an id of its own."""
        return [run_id for run_id in run_ids if len(self._ids.get(run_id, ())) > 1]
