"""`make_store`: a SQLite file with many sessions, each of some turns, for the bench of replays."""

import asyncio
import os
import random
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from turnwise.memory.conversation.blocks import Text, User, encode
from turnwise.memory.conversation.runs import RunOrigin, RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.records import replace

AT_ONCE = 256
"""How many sessions are written at the same time; their commits share transactions."""

_WORDS = [f"{first}{second}{third}" for first in "bdfklmnprst" for second in "aeiou" for third in "bdfklmnprstvz"]


async def fill(path: Path, sessions: int, turns: int) -> None:
    """Store sessions whose prompts and answers have some 180 characters, with a run for each turn."""
    store = SQLStore(f"sqlite:///{path}")
    numbers = iter(range(sessions))

    async def write() -> None:
        for number in numbers:
            await _write_session(store, number, turns)

    await asyncio.gather(*(write() for _ in range(AT_ONCE)))
    await store.close()


async def _write_session(store: SQLStore, number: int, turns: int) -> None:
    dice, began = random.Random(number), 1_790_000_000.0 + 60 * number
    session = await store.create(SessionRecord(session_id=f"s{number:06}", user_id=f"user-{number % 997}"))
    session = (await store.activate(session.key)).session
    for index in range(turns):
        texts = (" ".join(dice.choices(_WORDS, k=45)) for _ in range(2))
        start, at = 2 * index, began + index
        usage = Usage(input_tokens=90 * (index + 1), output_tokens=45, calls=1, seconds=0.8)
        run = RunRecord(
            run_id=f"{session.session_id}-{index}",
            session_id=session.session_id,
            user_id=session.user_id,
            turn_index=index,
            state="completed",
            first_seq=1,
            created_at=at,
            started_at=at,
            ended_at=at + 0.8,
            origin=RunOrigin(),
            usage=usage,
            stop_reason="stop",
        )
        turn = TurnRecord(
            index=index,
            run_id=run.run_id,
            status="completed",
            prompt=(Span(session.log, start, start + 1),),
            input=(Span(session.log, 0, start + 1),),
            output=(Span(session.log, start + 1, start + 2),),
            usage=usage,
            stop_reason="stop",
            created_at=at,
        )
        session = replace(session.committed(), log_size=start + 2, next_index=index + 1)
        blocks = [encode(kind(text=text)) for kind, text in zip((User, Text), texts, strict=True)]
        await store.commit(
            session.key, session.epoch, Commit(session=session, blocks=blocks, turns=[turn], new_run=run)
        )


WRITTEN = 10_000
"""How many sessions are written by the store itself. Larger stores have copies of their rows."""

_TABLES = {"sessions": "key", "turns": "session", "runs": "session", "blocks": "log"}
"""The tables that sessions have rows in, each with the column of the session's key."""


KEYS_APART = 10**12
"""More than between the first and the last key of a file that was just written."""


def multiply(path: Path, copies: int) -> None:
    """Add copies of all sessions of a file, each with keys and ids of its own."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, key in _TABLES.items():
            names = [row[1] for row in connection.execute(f"PRAGMA table_info(turnwise_{table})")]
            connection.execute(f"CREATE TEMP TABLE original AS SELECT * FROM turnwise_{table}")
            for copy in range(1, copies + 1):
                changed = {key: f"{key} - {copy} * {KEYS_APART}"}
                changed |= {name: f"{name} || '-{copy}'" for name in ("session_id", "run_id")}
                values = ", ".join(changed.get(name, f'"{name}"') for name in names)
                connection.execute(f"INSERT INTO turnwise_{table} SELECT {values} FROM original")
            connection.execute("DROP TABLE original")


def make_store(folder: Path, sessions: int, turns: int) -> Path:
    """Return the path of the file with these sessions, which is made if it is not there yet."""
    path = folder / f"replay-{sessions}-{turns}.db"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.new")
        if sessions > WRITTEN:
            shutil.copyfile(make_store(folder, WRITTEN, turns), new)
            multiply(new, sessions // WRITTEN - 1)
        else:
            asyncio.run(fill(new, sessions, turns))
        new.rename(path)
    return path


if __name__ == "__main__":
    print(make_store(Path(".cache/replay"), int(sys.argv[1]), 10))
