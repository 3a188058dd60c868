"""`/health`: whether the process answers, and whether its store does. Nobody is asked for credentials."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request

from turnwise import __version__
from turnwise.http.service import Service

NOBODY = "health-check"
"""A user who has no sessions, so that counting them costs one read."""

router = APIRouter(tags=["health"])


@router.get("/health")
async def health() -> dict[str, Any]:
    """Return at once: the process is up."""
    return {"status": "ok", "version": __version__}


@router.get("/health/ready")
async def ready(request: Request) -> dict[str, Any]:
    """Read the store once. While it is away, or the service stops, the answer is 503: send requests elsewhere."""
    service: Service = request.app.state.service
    if service.stopping.is_set():
        raise HTTPException(503, "the service stops")
    await service.manager.count(user_id=NOBODY)
    return {"status": "ok", "version": __version__}
