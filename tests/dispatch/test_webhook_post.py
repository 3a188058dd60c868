"""Where calls of webhooks are sent to: to addresses that were checked, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from turnwise.actors.dispatch.webhook_post import RefusedAddressError, UnreachableError, WebhookPost, resolve
from turnwise.memory.deliveries.addresses import is_public

HEADERS = {"webhook-id": "msg_1"}


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
        *("64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a00:1::", "2001::7f00:1"),
    ],
)
def test_an_address_inside_the_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "64:ff9b::101:101"])
def test_an_address_outside_is_public(address: str) -> None:
    assert is_public(address)


@asynccontextmanager
async def listening(answer: bytes = b"HTTP/1.1 204 No Content\r\n\r\n") -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server on loopback; yields its port, and what it is sent."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.read(10_000))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], requests


def leads_to(*addresses: str) -> WebhookPost:
    """Return a `Post` for which each name has these addresses."""

    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return WebhookPost(resolve)


async def test_a_name_that_leads_inside_is_refused_before_anything_is_sent() -> None:
    async with listening() as (port, requests):
        for post in (leads_to("127.0.0.1"), leads_to("1.1.1.1", "127.0.0.1"), leads_to("::ffff:127.0.0.1")):
            with pytest.raises(RefusedAddressError, match=r"'a\.example' leads to"):
                await post(f"http://a.example:{port}/", HEADERS, b"{}", allow_private=False)
            await post.close()
    assert requests == []


@pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:7f00:1]"])
async def test_an_address_in_another_form_is_refused(host: str) -> None:
    post = WebhookPost()
    with pytest.raises((RefusedAddressError, UnreachableError)):
        await post(f"https://{host}/", HEADERS, b"{}", allow_private=False)
    await post.close()


async def test_the_address_that_was_checked_is_the_one_that_is_called() -> None:
    """The name leads elsewhere at the next look: nobody looks again."""
    looks = iter([["127.0.0.1"], ["192.0.2.1"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(looks)

    post = WebhookPost(rebinding)
    async with listening() as (port, requests):
        status = await post(f"http://a.example:{port}/hook?a=b", HEADERS, b'{"a":1}', allow_private=True)
    await post.close()
    assert status == 204 and len(requests) == 1
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?a=b HTTP/1.1\r\n") and body == b'{"a":1}'
    assert f"host: a.example:{port}".encode() in head.lower() and b"webhook-id: msg_1" in head.lower()


async def test_the_next_address_is_tried_if_one_cannot_be_reached() -> None:
    async with listening() as (port, requests):
        post = leads_to("127.0.0.2", "127.0.0.1")
        assert await post(f"http://a.example:{port}/", HEADERS, b"{}", allow_private=True) == 204
        await post.close()
    assert len(requests) == 1


async def test_what_does_not_answer_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.actors.dispatch.webhook_post.POST_S", 0.2)

    async def fails(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    async with listening(b"nonsense\r\n\r\n") as (port, _):
        for post, match in (
            (leads_to("127.0.0.1"), "RemoteProtocolError"),
            (leads_to(), "has no address"),
            (WebhookPost(fails), "cannot be resolved: no such name"),
        ):
            with pytest.raises(UnreachableError, match=match):
                await post(f"http://a.example:{port}/", HEADERS, b"{}", allow_private=True)
            await post.close()

    has_left = asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        has_left.set()

    silent = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    async with silent:
        post = leads_to("127.0.0.1")
        with pytest.raises(UnreachableError, match=r"did not answer within"):
            await post(f"http://a.example:{silent.sockets[0].getsockname()[1]}/", HEADERS, b"{}", allow_private=True)
        await post.close()
        await has_left.wait()


async def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with listening() as (port, requests):
        post = leads_to("127.0.0.1")
        assert await post(f"http://a.example:{port}/", HEADERS, b"{}", allow_private=True) == 204
        await post.close()
    assert len(requests) == 1


async def test_a_name_is_resolved_to_all_its_addresses() -> None:
    assert set(await resolve("localhost", 80)) & {"127.0.0.1", "::1"}
