"""`post`: sends one call of a webhook, to a checked address only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from turnwise.memory.deliveries.addresses import is_public

if TYPE_CHECKING:
    import httpx2

POST_S = 15.0
"""How long a call may take, from resolving the name to the status of the answer, in seconds."""

MAX_ADDRESSES = 4
"""How many addresses of a receiver are tried."""


class UnreachableError(Exception):
    """No answer came from the receiver."""


class RefusedAddressError(Exception):
    """The receiver's name leads to an address inside the network."""


class Post(Protocol):
    """Sends one call."""

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes, *, allow_private: bool) -> int:
        """Return the status of the answer.

        Raises:
            UnreachableError: no answer came in time.
            RefusedAddressError: an address of the receiver is inside the network, and `allow_private` is false.
        """

    async def close(self) -> None:
        """Close what is open."""


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order in which to try them."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in entries))


class WebhookPost:
    """`Post` by HTTP. Each call resolves the name, checks all its addresses, and connects to one that was checked.

    So a name that leads elsewhere a moment later changes nothing. Each call has a connection of its own, as one that
    was opened for another name must not be used. Redirects are not followed, and no proxies of the environment used.

    Args:
        resolve: see `resolve`.
    """

    def __init__(self, resolve: Callable[[str, int], Awaitable[list[str]]] = resolve) -> None:
        self._resolve = resolve
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes, *, allow_private: bool) -> int:
        """See `Post`."""
        try:
            async with asyncio.timeout(POST_S):
                return await self._post(url, headers, body, allow_private)
        except TimeoutError:
            raise UnreachableError(f"it did not answer within {POST_S:g} s") from None

    async def close(self) -> None:
        """See `Post.close`."""
        client, self._client = self._client, None
        if client:
            await client.aclose()

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes, allow_private: bool) -> int:
        import httpx2

        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"its name {host!r} cannot be resolved: {error}") from error
        if not allow_private and (inside := [address for address in addresses if not is_public(address)]):
            raise RefusedAddressError(
                f"{host!r} leads to {', '.join(inside)}, inside the network: allow it with allow_private=True"
            )
        reason = f"its name {host!r} has no address"
        for address in addresses[:MAX_ADDRESSES]:
            target = httpx2.URL(url).copy_with(host=address)
            request = self._open().build_request(
                "POST",
                target,
                headers={**headers, "host": parts.netloc},
                content=body,
                extensions={"sni_hostname": host},
            )
            try:
                response = await self._open().send(request, stream=True)
            except httpx2.ConnectError as error:
                reason = f"{address} cannot be reached: {error}"
                continue
            except httpx2.HTTPError as error:
                raise UnreachableError(f"{type(error).__name__}: {error}") from error
            await response.aclose()
            return int(response.status_code)
        raise UnreachableError(reason)

    def _open(self) -> httpx2.AsyncClient:
        import httpx2

        if self._client is None:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
            self._client = httpx2.AsyncClient(
                trust_env=False, follow_redirects=False, limits=limits, timeout=httpx2.Timeout(POST_S)
            )
        return self._client
