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


@pytest.mark.parametrize(
    ("words", "address", "placement"),
    [
        (["--model", "any"], "", "in_process"),
        (["--model", "any"], "127.0.0.1:6379", None),
        (["--config", "serve.toml"], "", None),
    ],
)
def test_with_an_engine_sessions_run_in_the_console_where_no_ray_runs(
    words: list[str], address: str, placement: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[str | None] = []
    monkeypatch.setattr("turnwise.cli.serve.serve", lambda *_, **options: served.append(options["placement"]))
    env = {"RAY_ADDRESS": address, "RAY_TMPDIR": str(tmp_path)}
    assert turnwise("console", f"sqlite:///{tmp_path}/chats.db", *words, env=env).exit_code == 0
    assert served == [placement]
