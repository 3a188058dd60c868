"""Webhooks of sessions in the caller's process, with receivers that listen on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from patience import within
from servers.over_http import manager_at
from servers.webhook_receiver import Receiver
from stored.audit import store_of
from stored.open_stores import run_with
from turnwise import AsyncSessionManager, EchoEngine, Encryption, InProcess, SessionManager, Turn
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.errors import InvalidInputError, ReadOnlyStoreError, WebhookNotFoundError
from turnwise.memory.deliveries.webhooks import WEBHOOK_EVENTS, signed_headers
from turnwise.memory.stores.base import SessionStore

LONG_S = 30.0

until = within(LONG_S)

SETTINGS: dict[str, Any] = {"engine": EchoEngine(), "placement": InProcess()}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


MakeManager = Callable[..., AbstractContextManager[SessionManager]]


@pytest.fixture(params=["in process", "over HTTP"])
def manager_of(request: pytest.FixtureRequest) -> MakeManager:
    """Opens a manager of a store, or of a service that has the store."""
    return partial(manager_at, remotely=request.param == "over HTTP")


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/a.db"


def test_a_receiver_is_told_of_what_happens_and_can_check_who_says_so(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        chat = manager.open("chat", user_id="ann")
        chat.run("before").wait()
        webhook = manager.webhook(receiver.url, events=["run.completed", "session.ended"], allow_private=True)
        run = chat.run("hello")
        turn = run.wait()
        chat.end()
        until(lambda: len(receiver.requests) == 2)
        (path, headers, body), _ = receiver.requests
        assert path == "/hook?of=chat" and headers["host"] == f"localhost:{receiver.port}"
        signed_at = int(headers["webhook-timestamp"])
        assert webhook.secret and abs(signed_at - time.time()) < LONG_S
        expected = signed_headers(headers["webhook-id"], signed_at, body, [webhook.secret])
        assert expected.items() <= headers.items()
        completed, ended = receiver.told
        data = completed["data"]
        assert completed["type"] == "run.completed" and ended["type"] == "session.ended"
        assert (data["session_id"], data["user_id"], data["run_id"]) == ("chat", "ann", run.run_id)
        assert (data["text"], data["is_cut"], data["state"]) == (turn.text, False, "completed")
        assert data["turn_index"] == turn.index and data["usage"]["seconds"] >= 0
        assert chat.schedules().items == () and manager.schedules().items == ()
        until(lambda: not webhook.failed().items and not left(tmp_path, webhook.id))


def left(folder: Path, webhook_id: str) -> list[Any]:
    """Return the calls of a webhook that are in the store."""

    async def calls(store: SessionStore) -> list[Any]:
        return [*await store.deliveries(webhook_id=webhook_id)]

    with SessionManager(url_of(folder), **SETTINGS, read_only=True) as manager:
        return run_with(store_of(manager), calls)


def test_only_the_webhooks_of_a_user_hear_of_the_users_sessions(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        kwargs: dict[str, Any] = {"events": ["run.completed"], "allow_private": True}
        ann = manager.webhook(receiver.url + "&ann", user_id="ann", **kwargs)
        everyone = manager.webhook(receiver.url + "&all", **kwargs)
        off = manager.webhook(receiver.url + "&off", **kwargs)
        off.disable()
        for user_id in ("ann", "bob"):
            manager.open("chat", user_id=user_id).run("hello").wait()
        until(lambda: len(receiver.requests) == 3)
        users = [(path.rpartition("&")[2], json.loads(body)["data"]["user_id"]) for path, _, body in receiver.requests]
        assert sorted(users) == [("all", "ann"), ("all", "bob"), ("ann", "ann")]
        assert [webhook.id for webhook in manager.webhooks()] == [ann.id, everyone.id, off.id]
        assert [webhook.id for webhook in manager.webhooks(user_id="ann")] == [ann.id]
        assert [webhook.secret for webhook in manager.webhooks()] == [None] * 3
        assert not manager.webhooks()[2].is_enabled


def test_what_could_not_be_told_is_listed_and_sent_again(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        webhook = manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
        receiver.status = 410
        manager.open("chat").run("hello").wait()
        until(lambda: webhook.failed().items)
        (call,) = webhook.failed()
        assert call.why == "it answered 410, so its webhook is disabled" and call.attempts == 1
        assert call.payload["data"]["text"] == "hello" and not manager.webhooks()[0].is_enabled
        receiver.status = 200
        with pytest.raises(InvalidInputError, match="enable it first"):
            webhook.send_again()
        assert webhook.failed()[0].why == call.why
        webhook.enable()
        assert webhook.send_again("no such call") == 0 and webhook.send_again() == 1
        until(lambda: not left(tmp_path, webhook.id))
        assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == 1 < len(receiver.requests)


def test_a_secret_is_replaced_and_the_old_one_signs_besides(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        webhook = manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
        old = str(webhook.secret)
        new = manager.webhooks()[0].rotate_secret()
        manager.open("chat").run("hello").wait()
        until(lambda: receiver.requests)
        _, headers, body = receiver.requests[0]
        signed_at = int(headers["webhook-timestamp"])
        expected = signed_headers(headers["webhook-id"], signed_at, body, [new, old])
        assert headers["webhook-signature"] == expected["webhook-signature"] and new != old
        webhook.delete()
        webhook.delete()
        assert manager.webhooks() == []
        for verb in (webhook.enable, webhook.rotate_secret, webhook.send_again):
            with pytest.raises(WebhookNotFoundError, match=webhook.id):
                verb()


def test_a_webhook_is_changed_and_what_failed_goes_to_its_new_url(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        receiver.status = 410
        webhook = manager.webhook(f"{receiver.url}&old", events=["run.completed"], allow_private=True)
        manager.open("chat").run("hello").wait()
        until(lambda: webhook.failed().items)
        webhook.change(url=f"{receiver.url}&new", events=["session.ended"])
        assert (webhook.url, webhook.events) == (f"{receiver.url}&new", ("session.ended",))
        receiver.status = 200
        webhook.enable()
        manager.open("other").run("hello").wait()
        manager.get("other").end()
        assert webhook.send_again() == 1
        until(lambda: len(receiver.requests) >= 3 and not left(tmp_path, webhook.id))
        arrivals = [(path.rpartition("&")[2], json.loads(body)["type"]) for path, _, body in receiver.requests]
        assert sorted(arrivals) == [("new", "run.completed"), ("new", "session.ended"), ("old", "run.completed")]
        wrong: list[dict[str, Any]] = [{"url": "ftp://example.org"}, {"events": []}, {"events": ["run.started"]}]
        for changes in wrong:
            with pytest.raises(InvalidInputError):
                webhook.change(**changes)
        assert manager.webhooks()[0].url == f"{receiver.url}&new"
        webhook.delete()
        with pytest.raises(WebhookNotFoundError):
            webhook.change(url=receiver.url)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_user_who_is_forgotten_has_no_webhooks_left(
    manager_of: MakeManager, tmp_path: Path, is_encrypted: bool
) -> None:
    keys: dict[str, bytes | None] = {name: (name * 32).encode()[:32] for name in ("ann", "bob", "default")}
    options: Any = {"encryption": Encryption(keys.get)} if is_encrypted else {}
    with manager_of(url_of(tmp_path), **SETTINGS, **options) as manager:
        for user_id in ("ann", "ann", "bob", None):
            manager.webhook("https://example.org", events=["run.completed"], user_id=user_id)
    keys["ann"] = None  # it was deleted
    with manager_of(url_of(tmp_path), **SETTINGS, **options) as manager:
        assert manager.forget("ann").webhooks == 2 and manager.forget("ann").webhooks == 0
        assert sorted(str(webhook.user_id) for webhook in manager.webhooks()) == ["None", "bob"]


def test_a_repeated_creation_returns_the_same_webhook(manager_of: MakeManager, tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"events": ["run.completed"], "idempotency_key": "k"}
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        first = manager.webhook("https://example.org", **kwargs)
        again = manager.webhook("https://example.org", **kwargs)
        assert (again.id, again.secret) == (first.id, first.secret) and first.secret
        anns = manager.webhook("https://example.org", user_id="ann", **kwargs)
        assert anns.id != first.id and anns.secret != first.secret
        for other in ({"events": ["run.failed"]}, {"allow_private": True}):
            with pytest.raises(InvalidInputError, match=f"webhook '{first.id}' was created with it"):
                manager.webhook("https://example.org", **kwargs | other)
        new = first.rotate_secret()
        assert manager.webhook("https://example.org", **kwargs).secret == new
        first.delete()
        assert manager.webhook("https://example.org", **kwargs).secret not in (new, again.secret)


def test_addresses_inside_the_network_are_refused_and_no_redirect_is_followed(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    with manager_of(url_of(tmp_path), **SETTINGS) as manager:
        for url in (receiver.url, "ftp://example.org", "https://ann:pw@example.org", "https://", "https://a b.example"):
            with pytest.raises(InvalidInputError, match="url"):
                manager.webhook(url, events=["run.completed"])
        inside = manager.webhook(receiver.url.replace("http:", "https:"), events=["run.completed"])
        receiver.status, receiver.location = 302, f"{receiver.url}&elsewhere"
        redirected = manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
        manager.open("chat").run("hello").wait()
        until(lambda: all(call.why for webhook in (inside, redirected) for call in left(tmp_path, webhook.id)))
        (refused,), (answered,) = (left(tmp_path, webhook.id) for webhook in (inside, redirected))
        assert "'localhost' leads to" in refused.why and "inside the network" in refused.why
        assert answered.why == "it answered 302"
        assert {path for path, _, _ in receiver.requests} == {"/hook?of=chat"}


def test_failed_runs_budgets_and_decisions_are_told(
    manager_of: MakeManager, tmp_path: Path, receiver: Receiver
) -> None:
    def broken(turn: Turn) -> str:
        raise ValueError("no answer")

    with manager_of(url_of(tmp_path), engine=FunctionEngine(broken), placement=InProcess()) as manager:
        manager.webhook(receiver.url, events=list(WEBHOOK_EVENTS), allow_private=True)
        run = manager.open("chat").run("hello")
        with pytest.raises(Exception, match="no answer"):
            run.wait()
        until(lambda: receiver.requests)
        (told,) = receiver.told
        assert told["type"] == "run.failed" and "no answer" in told["data"]["why"]


def test_encrypted_stores_keep_secrets_and_texts_encrypted(tmp_path: Path, receiver: Receiver) -> None:
    encryption = Encryption(lambda user_id: (user_id * 32).encode()[:32])
    with SessionManager(url_of(tmp_path), encryption=encryption, **SETTINGS) as manager:
        receiver.status = 500
        webhook = manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
        manager.open("chat", user_id="ann").run("a plain text").wait()
        until(lambda: receiver.requests)
        assert receiver.told[0]["data"]["text"] == "a plain text"
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (str(webhook.secret).encode(), b"a plain text"):
        assert secret not in stored


async def test_coroutines_do_the_same_and_read_only_managers_change_nothing(tmp_path: Path, receiver: Receiver) -> None:
    async with AsyncSessionManager(url_of(tmp_path), **SETTINGS) as manager:
        webhook = await manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
        chat = await manager.open("chat")
        await (await chat.run("hello")).wait()
        until = time.monotonic() + LONG_S
        while not receiver.requests and time.monotonic() < until:
            await asyncio.sleep(0.02)
        assert receiver.told[0]["data"]["text"] == "hello" and not (await webhook.failed()).items
    async with AsyncSessionManager(url_of(tmp_path), read_only=True, **SETTINGS) as reading:
        (webhook,) = await reading.webhooks()
        for change in (webhook.disable(), webhook.delete(), webhook.send_again(), webhook.rotate_secret()):
            with pytest.raises(ReadOnlyStoreError):
                await change
        with pytest.raises(ReadOnlyStoreError):
            await reading.webhook(receiver.url, events=["run.completed"], allow_private=True)
