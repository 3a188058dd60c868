"""Webhooks: how calls are signed, which URLs and secrets are taken, and what is told of which event."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.blocks import Text
from turnwise.memory.conversation.events import (
    ApprovalRequested,
    Event,
    RunCompleted,
    RunFailed,
    RunStarted,
    SessionEnded,
)
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.deliveries.webhooks import (
    MAX_TEXT_CHARS,
    WEBHOOK_EVENTS,
    WebhookRecord,
    calls_of,
    check_secret,
    check_url,
    message_id_of,
    new_secret,
    signed_headers,
    webhook_id_of,
)
from turnwise.memory.values.frozen_json import FrozenDict

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The secret of the test vector that the libraries of Standard Webhooks share."""


def test_a_signature_is_that_of_the_test_vector_of_standard_webhooks() -> None:
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330.9, b'{"test": 2432232314}', [SECRET])
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_secret_signs() -> None:
    headers = signed_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [new_secret(), SECRET]
    )
    first, second = headers["webhook-signature"].split(" ")
    assert second == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" != first


def test_a_secret_has_24_to_64_bytes_and_is_never_shown() -> None:
    assert len({check_secret(new_secret()) for _ in range(10)}) == 10 and check_secret(SECRET) == SECRET
    for size in (24, 64):
        check_secret("whsec_" + base64.b64encode(b"a" * size).decode())
    wrong = [SECRET.removeprefix("whsec_"), "whsec_", "whsec_" + "!" * 32, SECRET[:-1], ""]
    wrong += ["whsec_" + base64.b64encode(b"a" * size).decode() for size in (23, 65)]
    for secret in wrong:
        with pytest.raises(InvalidInputError) as raised:
            check_secret(secret)
        assert len(secret) < 10 or secret not in str(raised.value)
    webhook = WebhookRecord(webhook_id="w", url="https://a.example", events=("run.failed",), secret=SECRET)
    assert SECRET not in repr(webhook)


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.example", "//a.example", "https://", "https:///path", "ftp://a.example", "file:///etc/passwd"),
        *(
            "https://a.example:0/",
            "https://a.example:99999/",
            "https://[::1",
            "https://a.example/\n",
            "https://ü.example",
        ),
        *(
            "https://ann:secret@a.example",
            "https://ann@a.example",
            "https://a.example/" + "a" * 2048,
            "http://a.example",
        ),
    ],
)
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="url") as raised:
        check_url(url)
    assert "secret" not in str(raised.value)


def test_a_url_may_be_unencrypted_only_inside_the_network() -> None:
    assert check_url("https://a.example:8443/hook?a=b") and check_url("http://10.0.0.1/hook", allow_private=True)
    assert check_url("https://[2606:4700::1111]/hook") and check_url("https://10.example/hook")
    for url in ("http://10.0.0.1/hook", "https://10.0.0.1/hook", "https://[::1]:8443/hook", "https://[::ffff:7f00:1]/"):
        with pytest.raises(InvalidInputError, match="allow_private=True"):
            check_url(url)


IDS: dict[str, Any] = {"session_id": "s", "user_id": "ann", "seq": 7, "at": 4.5}


def told(event: Event, **values: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the type and the data of each call that tells a webhook of everything."""
    fields: dict[str, Any] = {"webhook_id": "w", "url": "https://a.example", "events": WEBHOOK_EVENTS, **values}
    calls = [change.after for change in calls_of([WebhookRecord(**fields)], [event]) if change.after]
    assert all((webhook_id_of(call), call.session_id, call.user_id) == ("w", "s", "ann") for call in calls)
    assert len({message_id_of(call) for call in calls}) == len(calls)
    return [(call.payload["type"], dict(call.payload["data"])) for call in calls]


def test_a_webhook_is_told_of_what_it_names() -> None:
    failed = RunFailed(**IDS, run_id="r", turn_index=1, why="it has spent its budget", code="budget")
    assert [kind for kind, _ in told(failed)] == ["run.failed", "budget.reached"]
    assert [kind for kind, _ in told(failed, events=("budget.reached",))] == ["budget.reached"]
    assert (
        told(failed, events=("session.ended",)) == told(failed, user_id="bob") == told(failed, is_enabled=False) == []
    )
    assert told(RunStarted(**IDS, run_id="r")) == []
    assert told(SessionEnded(**IDS)) == [("session.ended", {"user_id": "ann", "session_id": "s", "seq": 7})]


def test_a_call_says_what_is_to_be_decided_and_not_with_which_arguments() -> None:
    event = ApprovalRequested(
        **IDS, run_id="r", call_id="c", name="pay", input=FrozenDict(card="4242"), why="it is much"
    )
    ((kind, data),) = told(event)
    expected = {"run_id": "r", "call_id": "c", "name": "pay", "why": "it is much", "wants": "approval"}
    assert kind == "run.awaiting_decision" and expected.items() <= data.items() and "4242" not in str(data)


def test_an_answer_is_cut_at_its_bound() -> None:
    blocks = (Text(text="ä" * (MAX_TEXT_CHARS + 1)),)
    ((_, data),) = told(RunCompleted(**IDS, run_id="r", blocks=blocks, usage=Usage(input_tokens=3)))
    assert data["text"] == "ä" * MAX_TEXT_CHARS and data["is_cut"] is True and data["usage"] == {"input_tokens": 3}
