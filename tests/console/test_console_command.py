"""`turnwise console` says what it cannot serve; tests/console shows what it serves."""

import socket
from pathlib import Path

import pytest
from filled import turnwise


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--host", "0.0.0.0"], "give --tokens FILE"),
        (["--tokens", "no-such-file"], "cannot be read"),
    ],
)
def test_the_command_refuses_what_cannot_be_served(options: list[str], reason: str, tmp_path: Path) -> None:
    result = turnwise("console", f"sqlite:///{tmp_path}/chats.db", *options)
    assert result.exit_code == 1 and reason in result.stderr
    assert not list(tmp_path.iterdir()), "it only reads"


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = turnwise("console", f"sqlite:///{tmp_path}/chats.db", "--port", port)
    assert result.exit_code == 1 and "the port cannot be opened" in result.stderr


def test_what_only_reads_needs_no_engine(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/chats.db"
    result = turnwise("console", store, "--read-only", "--model", "any")
    assert result.exit_code == 2 and "leave out --read-only" in result.stderr
