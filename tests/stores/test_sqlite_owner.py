"""One Ray cluster at a time has a SQLite file, however its processes end.

Run as a program it takes a file as a process of a Ray: `python test_sqlite_owner.py FILE RAY`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.forks import Fork
from turnwise.errors import ConfigError, StoreError
from turnwise.memory.stores.sql import sqlite_owner
from turnwise.memory.stores.sql.sqlite_owner import SQLiteOwner, lock_holder
from turnwise.memory.stores.store_owner import StoreOwner


@pytest.fixture
def address() -> Iterator[str]:
    """Of something that answers, as the head of a Ray does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def process(file: Path, ray: StoreOwner) -> Iterator[Fork]:
    """Start a process of a Ray that takes its share of the lock, and keeps it."""

    def hold() -> None:
        owner = take(file, ray)
        print("has it", flush=True)
        sys.stdin.read()
        owner.release()

    with Fork(hold) as started:
        assert started.out.readline() == "has it\n"
        yield started


def take(file: Path, ray: StoreOwner) -> SQLiteOwner:
    return SQLiteOwner(file, "sqlite:///x.db", ray)


def test_processes_of_one_ray_share_a_file_and_another_ray_is_refused_until_the_last_is_gone(
    tmp_path: Path, address: str
) -> None:
    file, first_ray, second_ray = tmp_path / "x.db", StoreOwner(address, "one"), StoreOwner("127.0.0.1:1", "two")
    with process(file, first_ray) as first, process(file, first_ray) as second:
        lock = take(file, first_ray)
        lock.release()
        first.kill()  # however it ends
        with pytest.raises(ConfigError) as refused:
            take(file, second_ray)
        for part in (address, "ray start --head", "RAY_ADDRESS", "read_only=True", "sqlite:///x.db"):
            assert part in str(refused.value)
        second.kill()
    owner = take(file, second_ray)
    owner.release()
    owner.release()
    assert not file.exists()


def test_a_ray_cluster_waits_for_the_processes_of_an_ended_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, ended, new = tmp_path / "x.db", StoreOwner("127.0.0.1:1", "gone"), StoreOwner("127.0.0.1:2", "new")
    with process(file, ended) as last:
        looked = 0

        def look(holder: StoreOwner) -> bool:
            nonlocal looked
            looked += 1
            assert holder in (ended, StoreOwner("", ""))
            if looked == 3:
                os.kill(last.pid, signal.SIGKILL)
            return False  # nothing answers where its head was

        monkeypatch.setattr(sqlite_owner, "_is_reached", look)
        take(file, new).release()
        assert looked >= 3


def test_reading_the_lock_of_an_ended_ray_cluster_does_not_hold_it(tmp_path: Path, address: str) -> None:
    file, ended, new = tmp_path / "x.db", StoreOwner(address, "gone"), StoreOwner(address, "new")
    take(file, ended).release()
    looking = sqlite3.connect(tmp_path / "x.db.lock", isolation_level=None, check_same_thread=False)
    looking.execute("BEGIN")
    looking.execute("SELECT * FROM owner").fetchall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.memory.stores.sql.sqlite_owner.time.sleep", lambda _: looking.close())
        take(file, new).release()


def test_a_forked_process_neither_holds_nor_releases_the_lock(tmp_path: Path, address: str) -> None:
    file, first_ray, second_ray = tmp_path / "x.db", StoreOwner(address, "one"), StoreOwner(address, "two")
    owner = take(file, first_ray)
    if (child := os.fork()) == 0:
        owner.release()
        os._exit(0)
    os.waitpid(child, 0)
    command = [sys.executable, __file__, str(file), second_ray.address, second_ray.session]
    refused = subprocess.run(command, text=True, capture_output=True, check=False)
    assert refused.returncode == 1 and "ConfigError" in refused.stderr
    owner.release()


def test_a_ray_with_a_token_is_named_with_the_variables_that_join_it(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").touch()
    file = tmp_path / "x.db"
    with (
        process(file, StoreOwner(address, "one")),
        pytest.raises(ConfigError, match=f"set RAY_ADDRESS={address} RAY_AUTH_MODE=token;"),
    ):
        take(file, StoreOwner("127.0.0.1:1", "two"))


def test_a_file_that_no_other_process_has_open_has_no_holder(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "missing.db") is None
    (tmp_path / "left.db.lock").write_bytes(b"")
    assert lock_holder(tmp_path / "left.db") is None


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the folder .*/none does not exist: create it"):
        take(tmp_path / "none/x.db", StoreOwner("127.0.0.1:1", "one"))


def test_a_lock_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "x.db.lock").mkdir()
    with pytest.raises(StoreError, match=r"x\.db\.lock cannot be written.*read_only=True"):
        take(tmp_path / "x.db", StoreOwner("127.0.0.1:1", "one"))


if __name__ == "__main__":
    take(Path(sys.argv[1]), StoreOwner(*sys.argv[2:]))
