"""The trial's backup and its restore: the commands of their containers, with a real PostgreSQL and its own programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from deploying.kustomize import DEPLOY, Manifest, containers_of, find, render

if TYPE_CHECKING:
    from servers.postgres_server import PostgresServer


def run(job: Manifest, folder: Path, programs: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the only container of a job, whose volumes are in a folder."""
    (container,) = containers_of(job)
    script = container["command"][-1].replace("/backups", str(folder)).replace("/tmp/", f"{folder}/")
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **env}
    return subprocess.run(["sh", "-ec", script], env=env, capture_output=True, text=True, timeout=120, check=False)


def values(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM kept ORDER BY number").fetchall()]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_restore_brings_back_all_of_a_dump_and_nothing_else(
    is_broken: bool, database: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Also over tables of a later version; and a dump that cannot be read changes nothing."""
    programs, folder = postgres_server.programs, tmp_path
    for day in range(1, 10):
        (folder / f"turnwise-2026-11-0{day}-0317.dump").touch()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE kept (number integer PRIMARY KEY)")
        connection.execute("INSERT INTO kept VALUES (1), (2)")
    backup = run(
        find(render(DEPLOY / "overlays/trial"), "CronJob", "turnwise-backup"), folder, programs, STORE=database
    )
    assert backup.returncode == 0, backup.stderr
    *earlier, dump = sorted(folder.glob("turnwise-*.dump"))
    assert [path.name[9:19] for path in earlier] == [f"2026-11-0{day}" for day in range(3, 10)]
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM kept WHERE number = 1")
        connection.execute("CREATE TABLE later (number integer REFERENCES kept (number))")
        connection.execute("INSERT INTO later VALUES (2)")
    if is_broken:
        dump.write_bytes(dump.read_bytes()[: dump.stat().st_size // 2])
    restore = run(
        find(render(DEPLOY / "restore"), "Job", "turnwise-restore"), folder, programs, STORE=database, DUMP=dump.name
    )
    assert (restore.returncode != 0) == is_broken, restore.stderr
    assert values(database) == ([2] if is_broken else [1, 2])
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT to_regclass('later')").fetchone()
    assert found == ("later" if is_broken else None,)
