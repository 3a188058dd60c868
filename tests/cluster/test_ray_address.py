"""What turnwise finds out about a Ray before it connects to it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from turnwise import EchoEngine, SessionManager
from turnwise.actors.cluster import ray_address
from turnwise.actors.cluster.ray_address import local_ray
from turnwise.errors import ConfigError, StoreError
from turnwise.memory.stores.store_owner import naming


def test_a_ray_address_at_which_nobody_answers_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=rf"{address}.*no Ray answers there .*`ray start --head`"):
            SessionManager(f"sqlite:///{tmp_path}/chats.db", engine=EchoEngine()).open("trip")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program has the port"),
        (b"", "it closed the connection"),
        (None, "timed out"),
    ],
)
def test_a_port_of_another_program_is_no_ray(says: bytes | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would wait for it for minutes."""
    monkeypatch.setattr(ray_address, "CONNECT_S", 0.2)
    with another_program(says) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ConfigError, match=rf"{address}.*no Ray answers there \({why}\)"):
            ray_address.check_ray_address()


@contextmanager
def another_program(says: bytes | None) -> Iterator[str]:
    """Listen at a port of this machine, and answer each connection so; None says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as connections:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection = connections.enter_context(server.accept()[0])
                    if says is not None:
                        connection.recv(1000)
                        connection.sendall(says)
                        connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_missing_folder_is_refused_before_a_ray_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("a Ray was started"))
    for stores in (
        {"store": f"sqlite:///{tmp_path}/none/a.db"},
        {"store": "memory://a", "history_store": f"sqlite:///{tmp_path}/none/b.db"},
    ):
        with pytest.raises(StoreError, match=r"the folder .*/none does not exist"):
            SessionManager(engine=EchoEngine(), **stores)  # type: ignore[arg-type]


def test_the_ray_of_this_machine_is_known_while_somebody_listens_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert local_ray() is None
    noted = tmp_path / "ray/ray_current_cluster"
    noted.parent.mkdir()
    with another_program(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))) as address:  # a server of HTTP/2, as Ray's is
        noted.write_text(f"{address}\n", encoding="utf-8")
        assert local_ray() == address
    assert local_ray() is None
    with another_program(b"SSH-2.0-OpenSSH\r\n") as address:
        noted.write_text(f"{address}\n", encoding="utf-8")
        assert local_ray() is None


def test_a_ray_is_named_with_its_token_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert naming("head:6379") == "RAY_ADDRESS=head:6379"
    token = tmp_path / ".ray/auth_token"
    token.parent.mkdir()
    token.touch()
    assert naming("head:6379") == "RAY_ADDRESS=head:6379 RAY_AUTH_MODE=token"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # as a Ray does that this process has started
    assert naming("head:6379") == "RAY_ADDRESS=head:6379 RAY_AUTH_MODE=token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert naming("head:6379") == "RAY_ADDRESS=head:6379"
