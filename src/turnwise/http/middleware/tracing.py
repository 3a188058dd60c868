"""`TraceContext`: the runs that a request starts are part of the trace that its header `traceparent` names."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from turnwise.actors.client.shared.trace_context import received

_HEADERS = ("traceparent", "tracestate")

_LONGEST = 512
"""The most characters of a header; W3C's format needs no more."""


class TraceContext:
    """An ASGI middleware that hands the trace context of each request on to the runs that it starts.

    An instrumentation of the app, whose span is the current one, comes first. Headers that are not a valid W3C trace
    context are ignored where they are read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope.get("headers", ()))
        trace_headers = {name: value for name, value in headers if name in _HEADERS and len(value) <= _LONGEST}
        if "traceparent" not in trace_headers:
            await self._app(scope, receive, send)
            return
        with received(trace_headers):
            await self._app(scope, receive, send)
