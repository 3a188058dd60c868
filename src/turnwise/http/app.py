"""`create_app`: the service as one ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from turnwise import __version__
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.adapters.front_ends.vercel import VercelEncoder
from turnwise.errors import ConfigError
from turnwise.http import health, problems
from turnwise.http.auth import Auth
from turnwise.http.config import ServiceConfig, Source
from turnwise.http.front_ends import ui
from turnwise.http.middleware.counts import CountLimits
from turnwise.http.middleware.credentials import Credentials, asked_once
from turnwise.http.middleware.origins import SameSite
from turnwise.http.middleware.paths import SegmentPaths
from turnwise.http.middleware.size_limits import SizeLimits, refused
from turnwise.http.middleware.tracing import TraceContext
from turnwise.http.middleware.uploads import MULTIPART_BYTES, BodyLimits
from turnwise.http.native import (
    cluster,
    events,
    files as native_files,
    marks,
    members,
    memories,
    quotas,
    runs,
    schedules,
    sessions,
    tenants,
    usage,
    webhooks,
)
from turnwise.http.openai import conversations, errors, files as openai_files, models, responses
from turnwise.http.openai.chat_completions import chat
from turnwise.http.service import Service
from turnwise.http.settings import HttpSettings

_log = logging.getLogger(__name__)

DRAINED_S = 3.0
"""How long a stopped app waits for what outlives its requests, such as cancelling the runs of clients that left."""

_EXPOSED = ("Location", "Retry-After", "X-Should-Retry")


class _App(FastAPI):
    """The app; its description has the schema of problems."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"]["schemas"]["Problem"] = problems.SCHEMA
        return document


def _routes() -> list[BaseRoute]:
    """Return the routes of all routers. Apps share them: `include_router` would build each one anew for each app."""
    routers = [health.router, sessions.router, runs.router, memories.router, models.router, chat.router]
    routers += [schedules.router, usage.router, quotas.router, tenants.router, webhooks.router, marks.router]
    routers += [native_files.router, members.router, events.router, cluster.router, ui.router]
    if find_spec("ag_ui"):  # an extra of its own
        routers.append(import_module("turnwise.http.front_ends.ag_ui").router)
    routers += [responses.router, conversations.router, openai_files.router]
    routers.append(errors.router)  # the last of OpenAI's: it has all of their addresses
    return [route for router in routers for route in router.routes]


def create_app(
    manager: AsyncSessionManager | ServiceConfig, *, auth: Auth | None = None, settings: HttpSettings | None = None
) -> FastAPI:
    """Return the service as an ASGI app, which runs on its own or mounted under another app.

    Its lifespan opens the manager on the server's event loop, so that runs which a kill has interrupted go on, and does
    not close it. A mounted app has no lifespan: the app around it opens the manager. `app.state.service` is its
    `Service`: whoever runs the server calls `service.stop()` when the server is to stop, so that streams end and
    clients resume them.

    Args:
        manager: what the service serves. Or the
            configuration of a service, such as `load("serve.toml")` of `turnwise.http.config` returns first: then the
            app's lifespan opens the manager and closes it, and `auth` and `settings` are the configuration's.
        auth: who makes a request: `BearerTokens`, or a function of your own. Without it, everybody who reaches the
            service is the user "default", so listen on loopback only.
        settings: limits and defaults; if omitted, `HttpSettings()`, which reads the environment.

    Raises:
        ConfigError: something of the configuration is wrong.
    """
    if isinstance(manager, ServiceConfig):
        if auth is not None or settings is not None:
            raise ConfigError("manager", "ServiceConfig", "it says who makes a request, and has the limits: omit these")
        return _configured(manager)
    if auth is not None:
        auth = asked_once(auth)
    service = Service(manager, settings or HttpSettings(), auth)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await manager.__aenter__()  # whoever made it closes it
        yield
        service.stop()
        try:
            await asyncio.wait_for(service.drained(), DRAINED_S)
        except TimeoutError:
            _log.warning("the service ends, and some of what outlives its requests is not done")

    app = _App(
        title="turnwise",
        version=__version__,
        summary="Durable, cancellable, resumable conversations",
        lifespan=lifespan,
        routes=_routes(),
    )
    app.state.service = service
    problems.install(app)
    limits = service.settings
    app.add_middleware(CountLimits, refused=refused, max_values=limits.max_body_values, max_bytes=limits.max_body_bytes)
    max_file_bytes = manager.config.max_file_bytes
    app.add_middleware(BodyLimits, max_bytes=limits.max_body_bytes, max_file_bytes=max_file_bytes)
    app.add_middleware(SegmentPaths)
    app.add_middleware(TraceContext)
    app.add_middleware(
        SizeLimits,
        max_header_bytes=limits.max_header_bytes,
        max_body_bytes=limits.max_body_bytes,
        max_upload_bytes=max_file_bytes + MULTIPART_BYTES,
    )
    if auth is None:
        app.add_middleware(SameSite, origins=limits.cors_origins)
    else:
        app.add_middleware(Credentials, auth=auth)
    if limits.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=limits.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],  # clients of OpenAI send a dozen of their own
            expose_headers=[chat.SESSION_ID, chat.RUN_ID, *_EXPOSED, *VercelEncoder.headers],
        )
    return app


def _configured(config: ServiceConfig) -> FastAPI:
    """Return the app of a configuration, with a manager of its own."""
    assembly = import_module("turnwise.http.assembly").assemble(config, Source(None, "", {}))
    app: FastAPI = assembly.app
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with assembly.manager, inner(app):
            yield

    app.router.lifespan_context = lifespan
    return app
