"""`SegmentPaths`: ids in paths may hold any characters, percent-encoded, "/" as %2F."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import Path
from pydantic import AfterValidator
from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX = "/v1/"


class SegmentPaths:
    """An ASGI middleware for the native API: a slash within an id does not separate segments of the path.

    Servers decode paths, so that `/v1/sessions/a%2Fb` arrives as `/v1/sessions/a/b`. This restores the segments from
    the path as it was sent, and keeps "/" and "%" within a segment encoded. `InPath` decodes them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root, path = scope.get("root_path", ""), scope["path"]
            if path.startswith(root + _PREFIX):
                raw: bytes = scope.get("raw_path") or quote(path).encode("ascii")
                scope = {**scope, "path": root + _segments(raw, root.count("/"))}
        await self._app(scope, receive, send)


def _segments(raw: bytes, skipped: int) -> str:
    """Return the segments of a path that was sent, behind the first `skipped` ones."""
    parts = raw.decode("latin-1").partition("?")[0].split("/")[1 + skipped :]
    return "".join(f"/{unquote(part).replace('%', '%25').replace('/', '%2F')}" for part in parts)


def _decoded(segment: str) -> str:
    """Undo what `_segments` encodes, in the opposite order: "%25" last, since it may stand before "2F"."""
    return segment.replace("%2F", "/").replace("%25", "%")


InPath = Annotated[str, AfterValidator(_decoded), Path(min_length=1)]
"""An id in a path. Percent-encode what is not a letter, a digit, "-", "_", "." or "~"."""


def id_of_header(value: str) -> str:
    """Return the id in a header. Clients send its UTF-8, which servers read as Latin-1."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


def header_of_id(id: str) -> str:
    """Return the value of a header that is sent as the UTF-8 of an id."""
    return id.encode("utf-8").decode("latin-1")


def path_of(root_path: str, *segments: str) -> str:
    """Return the path of a resource, for the header `Location`."""
    return root_path + "".join(f"/{quote(segment, safe='')}" for segment in segments)
