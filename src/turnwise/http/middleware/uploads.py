"""`BodyLimits`: bounds the bodies of requests, those of files by a bound of their own."""

from __future__ import annotations

import re

from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

MULTIPART_BYTES = 1 << 20
"""How much may stand around a file in the body that brings it."""

# The second is the console's: `turnwise.console.pages.files`.
_UPLOADS = re.compile(r"(?:.*/)?(?:v1/(?:sessions/.+/)?files|session/files)", re.DOTALL)


def is_upload(scope: Scope) -> bool:
    """Return whether a request brings a file. Its body is read in pieces, and is no JSON."""
    return bool(scope["type"] == "http" and scope["method"] == "POST" and _UPLOADS.fullmatch(scope["path"]))


class BodyLimits:
    """An ASGI middleware that answers 413 to a body that is too large.

    Args:
        max_bytes: the largest body of a request that brings no file.
        max_file_bytes: the largest file.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_file_bytes: int) -> None:
        self._others = RequestBodyLimitMiddleware(app, max_body_size=max_bytes)
        self._uploads = RequestBodyLimitMiddleware(app, max_body_size=max_file_bytes + MULTIPART_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._uploads if is_upload(scope) else self._others)(scope, receive, send)
