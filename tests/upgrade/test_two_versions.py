"""This version and a later one, as two programs at once on one PostgreSQL: no run is lost, and none is doubled."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import turnwise
from processes.later_version import edit, make_later
from stored.open_stores import closing
from turnwise.errors import SchemaVersionError
from turnwise.memory.stores.sql.rows import whole_body
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.urls import read_only

PROGRAM = """
import sys
from turnwise import EchoEngine, InProcess, SessionConfig, SessionManager, __version__

url, name, other = sys.argv[1:]
config = SessionConfig(**({"hurries": True} if __version__ == "0.2.0" else {}))
with SessionManager(url, engine=EchoEngine(), placement=InProcess(), config=config) as manager:
    print("open", flush=True)
    for line in sys.stdin:
        owner, first, last = line.split()
        for number in range(int(first), int(last)):
            chats = [manager.open(f"{owner}-{index}") for index in range(3)]
            runs = [chat.run(f"{name} {owner} {number}") for chat in chats]
            assert {run.wait().text for run in runs} == {f"{name} {owner} {number}"}
        print("done", flush=True)
"""


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A folder with the package as a later version may be: one more column, which earlier code need not know."""
    return make_later(tmp_path / "later")


class Program:
    """A program with a manager, which talks in the sessions that it is told of."""

    def __init__(self, folder: Path | None, *words: str) -> None:
        environ = {**os.environ, "PYTHONPATH": str(folder or Path(turnwise.__file__).parents[1])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self.wait_for("open")

    def tell(self, *words: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def wait_for(self, word: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline().strip() == word


@contextmanager
def running(*args: object) -> Iterator[Program]:
    program = Program(*args)  # type: ignore[arg-type]
    try:
        yield program
    finally:
        program.process.communicate(timeout=60)


def migrate(folder: Path, database: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "turnwise", "migrate", database]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)


def prompts_in(database: str) -> Counter[tuple[str, str]]:
    """Return how often each prompt was stored as a turn of each session."""
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT session_id, body FROM turnwise_turns t JOIN turnwise_sessions s ON s.key = t.session"
            " JOIN turnwise_blocks b ON b.log = s.key WHERE b.at = (t.prompt::json->0->>1)::int"
        ).fetchall()
    return Counter((session, json.loads(whole_body(body))["text"]) for session, body in rows)


def test_two_versions_at_once_lose_and_double_no_run(database: str, later: Path) -> None:
    """The later one brings the tables up while the earlier one talks; then each goes on where the other was.

    In the end the later one needs tables that the earlier one may not write, and gets them when that has ended.
    """
    with running(None, database, "earlier", "later") as earlier:
        earlier.tell("earlier", 0, 12)
        with running(later, database, "later", "earlier") as new:
            new.tell("later", 0, 8)
            for program in (earlier, new):
                program.wait_for("done")
            earlier.tell("later", 8, 12)
            new.tell("earlier", 12, 16)
            for program in (earlier, new):
                program.wait_for("done")
        spoken = [
            *(("earlier", "earlier", number) for number in range(12)),
            *(("later", "later", number) for number in range(8)),
            *(("earlier", "later", number) for number in range(8, 12)),
            *(("later", "earlier", number) for number in range(12, 16)),
        ]
        with psycopg.connect(database) as connection:
            states = connection.execute("SELECT state, count(*) FROM turnwise_runs GROUP BY state").fetchall()
            moods = connection.execute(
                "SELECT mood, count(*) FROM turnwise_turns GROUP BY mood ORDER BY mood"
            ).fetchall()
        assert states == [("completed", 3 * len(spoken))] and moods == [("calm", 3 * 12), (None, 3 * 16)]
        assert prompts_in(database) == Counter(
            (f"{owner}-{index}", f"{name} {owner} {number}") for name, owner, number in spoken for index in range(3)
        )
        schema = later / "turnwise/memory/stores/sql/schema.py"
        edit(schema, "version=2,", "version=3,")
        edit(schema, '"]}, writable_from=1, readable_from=1', '"], 2: ["SELECT 1"]}')
        refused = migrate(later, database)
        assert refused.returncode == 1 and "have it open (turnwise/process-" in refused.stderr, refused.stderr
    migrated = migrate(later, database)
    assert migrated.returncode == 0, migrated.stderr
    assert asyncio.run(refusal(database)) == ("3", 1)


async def refusal(database: str) -> tuple[str, int]:
    """Return the version of the tables, and that of this code, as the error says that refuses to read."""
    async with closing(SQLStore(read_only(database))) as store:
        with pytest.raises(SchemaVersionError, match="use a turnwise with schema version 3") as refused:
            await store.count()
    return refused.value.found, refused.value.known
