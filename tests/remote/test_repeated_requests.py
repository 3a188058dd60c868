"""The service does what it is asked, and its answer is lost: the client asks again, and it is done once."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from servers.cuts import Cuts, LostOnce
from servers.each_verb import use_each_verb
from servers.over_http import over_http
from servers.threaded_service import served
from turnwise import EchoEngine, InProcess
from turnwise.client import RemoteManager
from turnwise.client.blocking import steps
from turnwise.errors import ServiceAwayError, SessionExistsError, SessionNotFoundError
from turnwise.http import BearerTokens, remembered_answers
from turnwise.memories import WorkingMemory

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "sleep", lambda seconds: None)


@pytest.mark.by_turns
def test_each_verb_does_the_same_when_its_first_answer_is_lost(tmp_path: Path) -> None:
    transports: list[LostOnce] = []

    def through(inner: httpx2.BaseTransport) -> httpx2.BaseTransport:
        transports.append(LostOnce(inner))
        return transports[0]

    use_each_verb(tmp_path, through=through)
    assert transports[0].lost > 60


def texts(turn: Any) -> list[str]:
    return [block.text for block in turn.new_blocks]


@contextmanager
def cut_service(folder: Path) -> Iterator[tuple[Any, Cuts]]:
    cuts = Cuts()
    settings: dict[str, Any] = {"engine": EchoEngine(), "working_memory": WorkingMemory(f"sqlite:///{folder}/notes.db")}
    with over_http(f"sqlite:///{folder}/chats.db", through=cuts.through, **settings) as manager:
        yield manager, cuts


def test_what_was_done_is_answered_as_it_was_then(tmp_path: Path) -> None:
    with cut_service(tmp_path) as (manager, cuts):
        chat = manager.open("chat", user_id="ann")
        for text in ("one", "two"):
            chat.run(text).wait()
        cuts.then("lost", "lost", "lost", None)
        assert texts(chat.append("three")) == ["three"] and len(cuts.requests) == 4
        answers: list[tuple[Callable[[], Any], Any]] = [
            (lambda: chat.fork(session_id="named").session_id, "named"),
            (lambda: chat.remove(chat.turns()[0]), 2),
            (lambda: chat.choose(0), False),
            (lambda: manager.clear("ann").turns, 4),
            (lambda: manager.get("named", user_id="ann").delete().sessions, 1),
            (lambda: manager.forget("ann").sessions, 1),
            (lambda: manager.forget("ann").sessions, 0),
        ]
        for call, expected in answers:
            cuts.then(*["lost"] * 3)
            assert call() == expected
        cuts.then("lost")
        with pytest.raises(SessionNotFoundError):
            chat.append("to nobody")
        manager.open("a"), manager.open("b").run("hello").wait()
        cuts.then("lost")
        with pytest.raises(SessionExistsError):
            manager.get("b").fork(session_id="a")


def test_another_process_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with cut_service(tmp_path) as (manager, cuts):
        chat = manager.open("chat")
        changes: list[Callable[[], object]] = [
            lambda: chat.append("hello"),
            lambda: chat.add_event("name"),
            lambda: chat.memory.merge_notes("more"),
            lambda: manager.run_once("hello"),
            lambda: chat.fork(session_id="named"),
            lambda: chat.files.put("a.txt", b"a"),
            chat.clear,
            lambda: manager.clear("default"),
            chat.delete,
        ]
        for change in changes:
            cuts.then("lost", "elsewhere")
            with pytest.raises(ServiceAwayError, match="may have been done") as away:
                change()
            assert away.value.word == "unknown" and len(cuts.requests) == 2
        cuts.then("unsent", "unsent", None)
        chat = manager.open("other")
        assert len(cuts.requests) == 3, "what was not sent is sent again"
        cuts.then("lost", "elsewhere")
        assert chat.update(title="Oslo").title == "Oslo", "what does the same when it is done twice is done again"


def test_a_file_that_is_read_once_is_sent_once(tmp_path: Path) -> None:
    with cut_service(tmp_path) as (manager, cuts):
        files = manager.open("chat").files
        cuts.then("lost")
        with pytest.raises(ServiceAwayError) as away:
            files.put("a.txt", iter([b"a", b"b"]))
        assert away.value.word == "unknown" and len(cuts.requests) == 1
        cuts.then("lost", "lost")
        assert files.get(files.put("b.txt", b"ab").file_id) == b"ab" and len(files.list()) == 2


def test_an_answer_that_was_dropped_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cut_service(tmp_path) as (manager, cuts):
        chat = manager.open("chat")
        for name, value in (("HELD_S", -1.0), ("MAX_ANSWERS", 0), ("MAX_BYTES", 10)):
            with monkeypatch.context() as patched:
                patched.setattr(remembered_answers, name, value)
                cuts.then("lost")
                with pytest.raises(ServiceAwayError):
                    chat.append(name)
        cuts.then("lost")
        assert [block.text for block in chat.append("last").new_blocks] == [
            "HELD_S",
            "MAX_ANSWERS",
            "MAX_BYTES",
            "last",
        ]


def test_nobody_gets_the_answer_to_the_request_of_another_user(tmp_path: Path) -> None:
    auth = BearerTokens({"the-token-of-ann": "ann", "the-token-of-bob": "bob"})
    with served(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine(), placement=InProcess(), auth=auth) as service:

        def post(token: str, path: str, body: dict[str, Any]) -> httpx2.Response:
            headers = {"Authorization": f"Bearer the-token-of-{token}", "X-Turnwise-Request": "1"}
            return httpx2.post(f"{service.url}/v1/{path}", headers=headers, json=body)

        body = {"id": "chat", "title": "mine"}
        first = post("ann", "sessions", body)
        assert post("ann", "sessions", {**body, "title": "ignored"}).content == first.content
        assert post("bob", "sessions", body).json()["user_id"] == "bob"
        assert post("wrong", "sessions", body).status_code == 401
        assert post("ann", "sessions/chat/append", {"prompt": "hello"}).status_code == 200, "another path"


def _message(connection: socket.socket) -> bytes:
    """Return the next message of HTTP that comes; nothing if the connection is closed."""
    message, size = b"", None
    while size is None or len(message) < size:
        if not (piece := connection.recv(2**16)):
            return b""
        message += piece
        head, end, _ = message.partition(b"\r\n\r\n")
        if end:
            length = re.search(rb"content-length: (\d+)", head.lower())
            size = len(head) + len(end) + (int(length.group(1)) if length else 0)
    return message


class CuttingProxy:
    """Passes requests on to a service, and answers to its client, one connection at a time."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts_next = False
        """Whether the connection is closed instead of passing the next answer on."""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._port)) as service:
                while request := _message(client):
                    service.sendall(request)
                    answer = _message(service)
                    if self.cuts_next:
                        self.cuts_next = False
                        break
                    client.sendall(answer)


def test_a_real_connection_that_is_cut_before_the_answer_doubles_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    with served(store, engine=EchoEngine(), placement=InProcess()) as service:
        proxy = CuttingProxy(service.url)
        try:
            with RemoteManager(proxy.url) as manager:
                chat = manager.open("chat")
                proxy.cuts_next = True
                turn = chat.append("hello")
                assert not proxy.cuts_next and texts(turn) == ["hello"]
        finally:
            proxy.close()
