"""What becomes of requests and answers on the way to a service: see `Cuts` and `LostOnce`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import httpx2

from turnwise.client.shared.answers import KEY, REQUEST_ID


@dataclass(frozen=True)
class Refusal:
    status: int
    word: str


@dataclass(frozen=True)
class Ends:
    after: int
    """How many bytes there are."""


Fate: TypeAlias = str | int | Refusal | Ends | None


class Cuts(httpx2.BaseTransport):
    """Loses requests and answers on the way to a service, as `then` says."""

    def __init__(self) -> None:
        self._inner: httpx2.BaseTransport | None = None
        self._fates: Iterator[Fate] = iter(())
        self._path: str | None = None
        self.requests: list[str] = []
        """Those since `then` was called."""

    def through(self, inner: httpx2.BaseTransport) -> httpx2.BaseTransport:
        """Return this, on the way to the service."""
        self._inner = inner
        return self

    def then(self, *fates: Fate, always: Fate = None, path: str | None = None) -> None:
        """Say what becomes of the next requests.

        `unsent`: the service does not get it. `lost`: its answer is lost. `elsewhere`: another process of the service
        gets it, which does not know what was sent before. A number: the answer is cut after so many
        pieces. `Ends`: it ends after so many bytes, as if it were whole. A refusal: the answer is this, and the service
        does not get the request. None: it is answered.

        Args:
            always: what becomes of the requests after these.
            path: only that of the requests to this path; others are answered.
        """
        self._path = path
        self._fates = itertools.chain(fates, itertools.repeat(always))
        self.requests = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        fate = next(self._fates, None) if self._path in (None, request.url.path) else None
        self.requests.append(f"{request.method} {request.url.path}")
        if fate == "unsent":
            raise httpx2.ConnectError("refused")
        if isinstance(fate, Refusal):
            return httpx2.Response(fate.status, json={"error": fate.word, "detail": "there is no room"})
        assert self._inner
        if fate == "elsewhere":
            request.headers[REQUEST_ID] = f"{request.headers[REQUEST_ID]}, not known"
        response = self._inner.handle_request(request)
        if fate == "lost":
            response.read()
            raise httpx2.ReadError("the connection broke")
        if isinstance(fate, int):
            return httpx2.Response(response.status_code, headers=response.headers, stream=_Cut(response, fate))
        if isinstance(fate, Ends):
            return httpx2.Response(response.status_code, headers=response.headers, stream=_Short(response, fate.after))
        return response


class _Cut(httpx2.SyncByteStream):
    def __init__(self, response: httpx2.Response, most: int) -> None:
        self._response = response
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        for number, piece in enumerate(self._response.iter_bytes()):
            if number == self._most:
                raise httpx2.ReadError("the connection broke")
            yield piece

    def close(self) -> None:
        self._response.close()


class _Short(_Cut):
    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for piece in self._response.iter_bytes():
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return


class LostOnce(httpx2.BaseTransport):
    """Loses the first answer to each request that may change something: the service has carried it out."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner
        self._seen: set[tuple[str, str, str]] = set()
        self.lost = 0
        """How many answers were lost."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        name = request.headers.get(REQUEST_ID) or request.headers.get(KEY)
        if name is None or (request.method, request.url.path, name) in self._seen:
            return response
        self._seen.add((request.method, request.url.path, name))
        self.lost += 1
        response.read()
        raise httpx2.ReadError("the connection broke")
