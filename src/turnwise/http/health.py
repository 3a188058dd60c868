"""`/health`: whether the process answers, and whether its store can be used. Nobody is asked for credentials."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from turnwise import __version__
from turnwise.http.service import Service
from turnwise.memory.background import shielded

NOBODY = "health-check"
"""A user who has no sessions, so that counting them costs one read."""

router = APIRouter(tags=["health"])


class Readiness:
    """Checks the store of a service.

    A request during a check gets that check's outcome, so more requests cost no more.
    """

    def __init__(self, service: Service) -> None:
        self._manager = service.manager
        self._check: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raise StoreError unless sessions can be read and stored now."""
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(self._read_and_write())
        await shielded(self._check, "the check of the store")

    async def _read_and_write(self) -> None:
        await self._manager.count(user_id=NOBODY)
        await self._manager.check_store()


@router.get("/health")
async def health() -> dict[str, Any]:
    """Return at once: the process is up."""
    return {"status": "ok", "version": __version__}


@router.get("/health/ready")
async def ready(request: Request) -> dict[str, Any]:
    """Read and write the store once.

    The answer is 503 while that is not possible, as on a full disk, or the service stops: send requests elsewhere.
    """
    service: Service = request.app.state.service
    if service.stopping.is_set():
        raise HTTPException(503, "the service stops")
    if (readiness := getattr(request.app.state, "readiness", None)) is None:
        readiness = request.app.state.readiness = Readiness(service)
    await readiness.check()
    return {"status": "ok", "version": __version__}
