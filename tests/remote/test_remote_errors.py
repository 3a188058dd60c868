"""Errors of a service are the errors that its manager raises: made again from their problems."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from servers.over_http import over_http
from turnwise import EchoEngine, errors
from turnwise.client import RemoteManager
from turnwise.client.shared.problems import error_of
from turnwise.errors import (
    ConfigError,
    InvalidInputError,
    NotForgottenError,
    OperatorsOnlyError,
    RunNotFoundError,
    ServiceAwayError,
    ServiceError,
    SessionBusyError,
    SessionNotFoundError,
    TurnwiseError,
    UnauthorizedError,
)
from turnwise.http import BearerTokens, Identity
from turnwise.http.problems import problem_of, status_of

URL = "http://service"

ERRORS: list[type[TurnwiseError]] = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, TurnwiseError) and not issubclass(cls, ServiceError)
]


def example_of(cls: type[TurnwiseError]) -> TurnwiseError:
    """Return an error with a value of the right type in each field."""
    hints = {name: str(hint) for base in reversed(cls.__mro__) for name, hint in inspect.get_annotations(base).items()}

    def value(number: int, name: str) -> Any:
        if name == "turn":
            return None
        if name in ("left", "gone"):
            return {"facts": ["1", "2"]}
        return 7001 + number if re.search(r"\b(int|float)\b", hints.get(name, "")) else f"<the {name}>"

    return cls(*(value(number, name) for number, name in enumerate(cls.fields)))


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_an_error_comes_through_http_unchanged(cls: type[TurnwiseError]) -> None:
    error = example_of(cls)
    problem = json.loads(json.dumps(problem_of(error)))
    again = error_of(URL, status_of(error), problem)
    assert type(again) is cls and str(again) == str(error)
    assert [getattr(again, name) for name in cls.fields] == [getattr(error, name) for name in cls.fields]
    assert str(pickle.loads(pickle.dumps(again))) == str(error)


def test_what_is_no_error_of_turnwise_says_what_the_service_answered() -> None:
    unknown = {"error": "too_many_streams", "detail": "100 streams are open"}
    again = error_of(URL, 429, unknown)
    assert type(again) is ServiceError and (again.status, again.word) == (429, "too_many_streams")
    later = error_of(URL, 409, {"error": "session_busy", "detail": "it is busy", "session_id": "a"})
    assert type(later) is ServiceError and "run_id" in str(later)
    refused = error_of(
        URL, 422, {"error": "invalid_request", "errors": [{"at": ["body", "prompt"], "why": "is no text"}]}
    )
    assert type(refused) is InvalidInputError and refused.field == "prompt"
    left = NotForgottenError("it failed", {"facts": ["1"]}, {"notes": []})
    assert error_of(URL, 503, problem_of(left)).left == {"facts": ["1"]}  # type: ignore[attr-defined]


TOKENS = BearerTokens(
    {
        "the-token-of-ann-1": "ann",
        "the-token-of-bob-1": "bob",
        "the-token-of-root1": Identity("root", is_operator=True),
    }
)


def test_a_token_says_for_whom_calls_are(tmp_path: Path) -> None:
    tokens = iter(["the-token-of-ann-1"] * 2 + ["the-token-of-bob-1"] * 2 + ["the-token-of-root1"] * 9 + ["none"])
    store = f"sqlite:///{tmp_path}/chats.db"
    with over_http(store, engine=EchoEngine(), auth=TOKENS, remote={"token": lambda: next(tokens)}) as manager:
        assert manager.open("of-ann").user_id == "ann" == manager.get("of-ann", user_id="ann").user_id
        with pytest.raises(OperatorsOnlyError, match="act for others"):
            manager.get("of-ann", user_id="ann")
        with pytest.raises(SessionNotFoundError):
            manager.get("of-ann")
        assert manager.get("of-ann", user_id="ann").user_id == "ann", "an operator acts for any user"
        assert manager.open("of-root").user_id == "root"
        assert [record.user_id for record in manager.list()] == ["root", "ann"]
        assert manager.count(user_id="ann") == 1 and manager.count() == 2
        with pytest.raises(RunNotFoundError):
            manager.execution("none", user_id="ann")
        run = manager.get("of-ann", user_id="ann").run("hello")
        assert run.wait().text == "hello"
        with pytest.raises(UnauthorizedError, match="valid token"):
            manager.list()


def test_a_busy_session_says_which_run_it_has(tmp_path: Path) -> None:
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(30.0), remote={"user": "ann"}) as manager:
        chat = manager.open("chat")
        run = chat.run("one two")
        with pytest.raises(SessionBusyError) as busy:
            chat.run("and?")
        assert (busy.value.session_id, busy.value.run_id) == ("chat", run.run_id)
        assert chat.run("and?", if_busy="drop").dropped
        with pytest.raises(TimeoutError):
            run.wait(0.1)
        assert run.cancel()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx2.Response(404, text="<h1>Not Found</h1>"), "no answer of turnwise"),
        (httpx2.Response(200, text="<h1>Sign in</h1>"), "no answer of turnwise"),
        (httpx2.Response(200, content=b"\xff\xfe{"), "no answer of turnwise"),
        (httpx2.Response(200, headers={"Content-Encoding": "gzip"}, content=iter([b"text"])), "cannot be decoded"),
        (httpx2.Response(307, headers={"Location": "https://elsewhere"}), "no answer of turnwise"),
        (httpx2.Response(500, json={"error": "internal", "detail": "the log has the cause"}), "the log has the cause"),
    ],
)
def test_what_answers_instead_of_a_service_is_named(answer: httpx2.Response, message: str) -> None:
    transport = httpx2.MockTransport(lambda request: answer)
    with RemoteManager(URL, transport=transport) as manager, pytest.raises(ServiceError, match=message):
        manager.open("chat")


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"url": "chat"}, {"url": "ftp://x"}, {"url": URL, "connections": 0}, {"url": URL, "user": ""}):
        with pytest.raises((ConfigError, InvalidInputError)):
            RemoteManager(**wrong)


def test_a_url_with_a_password_is_refused_without_showing_it() -> None:
    for url in (
        "https://me:secret@host",
        "https://secret@host",
        "ftp://me:secret@host",
        "me:secret@host",
        "http://[@secret",
    ):
        with pytest.raises(ConfigError, match="url=") as refused:
            RemoteManager(url)
        assert "secret" not in str(refused.value)


def test_a_token_is_sent_without_the_line_break_of_its_file() -> None:
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["Authorization"])
        return httpx2.Response(200, json={"sessions": 1})

    transport = httpx2.MockTransport(answer)
    for token in ("the-token\n", lambda: " the-token\r\n"):
        with RemoteManager(URL, token=token, transport=transport) as manager:
            assert manager.count() == 1
    assert sent == ["Bearer the-token"] * 2


@pytest.mark.parametrize("token", ["a secret\nof two lines", "secr\u00e9t", "secret\x00", " \n"])
def test_a_token_that_no_header_carries_is_refused_unseen(token: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII") as refused:
        RemoteManager(URL, token=token)
    with RemoteManager(URL, token=lambda: token) as manager, pytest.raises(ConfigError) as later:
        manager.list()
    assert str(refused.value) == str(later.value) and "secr" not in str(refused.value)


def test_a_key_that_no_header_carries_is_refused(tmp_path: Path) -> None:
    with over_http(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()) as manager:
        chat = manager.open("chat")
        for key in ("cl\u00e9", " key", "key ", "one\nkey"):
            with pytest.raises(InvalidInputError):
                chat.run("hello", idempotency_key=key)
        with pytest.raises(InvalidInputError, match=r"idempotency_key.*printable ASCII"):
            chat.say("hello", key="cl\u00e9")
        assert chat.runs() == [] and chat.run("hello", idempotency_key="a key").wait().text == "hello"


def test_a_request_that_http_does_not_allow_is_sent_once_and_not_shown() -> None:
    requests: list[httpx2.Request] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        raise httpx2.LocalProtocolError("Illegal header value b'secret'")

    with RemoteManager(URL, transport=httpx2.MockTransport(refuse)) as manager:
        with pytest.raises(ServiceAwayError, match="look at its headers") as refused:
            manager.list()
        assert "secret" not in str(refused.value) and refused.value.word == "unsent" and len(requests) == 1
