"""Erases deleted vectors from Chroma's files in a folder. Also run as a program.

Chroma (1.5) stores a vector in three places: in `embeddings_queue` of `chroma.sqlite3`, until it has written the index;
in the index in memory; and in the index's files, which it writes after `SYNC_CHANGES` changes. It overwrites nothing in
SQLite, and only marks vectors in the index as deleted. It preallocates space for new vectors without zeroing it, so
that space may contain old memory.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

DATABASE = "chroma.sqlite3"

_BUSY_S = 5.0
_NAMED_AT_ONCE = 500


def overwrite(folder: Path, ids: Collection[str]) -> int:
    """Overwrite deleted data in a folder; return how many of these records are still in it, in any place.

    The cost depends on what Chroma has not yet written into its index, not on the size of the index. A separate process
    does it, since a process loses SQLite's locks on a database when it closes the same file. Blocks; a writer of the
    database waits some milliseconds meanwhile.

    Raises:
        OSError: the process cannot be started, or it failed.
    """
    arguments = json.dumps({"folder": str(folder), "ids": list(ids)})
    done = subprocess.run(  # noqa: S603 - this file
        [sys.executable, "-I", __file__], input=arguments, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"Chroma's data was not overwritten ({done.returncode}): {done.stderr.strip()[-500:]}")
    return int(done.stdout)


def rewrite(folder: Path) -> None:
    """Rewrite the database and remove records without a collection: O(all). Only while nobody has it open."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        connection.execute("VACUUM")
        used = {name for (name,) in connection.execute("SELECT id FROM segments")}
    for header in folder.glob("*/header.bin"):
        if header.parent.name not in used:
            shutil.rmtree(header.parent)  # Chroma leaves the vectors of a collection it deletes
    zero_unused_space(folder)


def zero_unused_space(folder: Path) -> None:
    """Zero the unused space in the index's files."""
    for header in folder.glob("*/header.bin"):
        version, _, _, count, size = struct.unpack_from("<i4Q", header.read_bytes())
        for name, start in (("data_level0.bin", count * size), ("length.bin", count * 4)) if version == 1 else ():
            with header.with_name(name).open("r+b") as opened:
                opened.seek(start)
                room = opened.read()
                if room.strip(b"\0"):
                    opened.seek(start)
                    opened.write(bytes(len(room)))


def _overwrite(folder: Path, ids: Sequence[str]) -> int:
    with closing(sqlite3.connect(folder / DATABASE, timeout=_BUSY_S, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("BEGIN IMMEDIATE")
        remaining = sum(
            _count(connection, ids[start : start + _NAMED_AT_ONCE]) for start in range(0, len(ids), _NAMED_AT_ONCE)
        )
        # The pages of the queue have old vectors between those that are in use.
        connection.execute("CREATE TEMP TABLE waiting AS SELECT * FROM embeddings_queue")
        connection.execute("DELETE FROM embeddings_queue")
        connection.execute("INSERT INTO embeddings_queue SELECT * FROM waiting")
        # Free pages are used first, so a row as large as all of them overwrites all of them.
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute("CREATE TABLE turnwise_blank (bytes BLOB)")
        connection.execute("INSERT INTO turnwise_blank VALUES (zeroblob(?))", (free * size,))
        connection.execute("DROP TABLE turnwise_blank")
        connection.execute("COMMIT")
    return remaining


def _count(connection: sqlite3.Connection, ids: Sequence[str]) -> int:
    """Return how many records there are of these ids, and how many of their vectors the index's files may have."""
    condition = f"IN ({', '.join('?' * len(ids))})"
    records = f"SELECT count(*) FROM embeddings WHERE embedding_id {condition}"  # noqa: S608
    waiting = f"SELECT count(DISTINCT id) FROM embeddings_queue WHERE id {condition}"  # noqa: S608
    return sum(connection.execute(select, ids).fetchone()[0] for select in (records, waiting))


if __name__ == "__main__":
    arguments = json.load(sys.stdin)
    json.dump(_overwrite(Path(arguments["folder"]), arguments["ids"]), sys.stdout)
