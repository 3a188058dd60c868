"""Connections to PostgreSQL with a limit on every wait."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import PipelineStatus
from psycopg.waiting import Ready

from turnwise.errors import StoreError

Answer = TypeVar("Answer")

CONNECT_S = 10
"""How long to wait for a connection, in seconds, if the URL has no `connect_timeout`."""

PATIENCE = 1.5
"""The wait for an answer, as a multiple of `statement_timeout`. A working server answers within the timeout."""

BRIEF_MS = 200
"""How long a group of commits waits for a row that another transaction holds, in milliseconds."""

_AHEAD = 4096
"""How many bytes of an answer are looked at before the driver reads them."""

_FATAL = re.compile(rb"E.{4}SFATAL\0(?:[^CM\0][^\0]*\0)*C(\w{5})\0M([^\0]*)\0", re.DOTALL)
"""An error by which a server ends a connection, in PostgreSQL's protocol: its SQLSTATE and its message."""

TRANSACTION_TIMEOUT_SINCE = 170_000
"""The first server version with this setting. Older servers do not notice a client that freezes after a pipeline."""

# Changes only settings that still have their default value: settings of the URL, the role, the database and the server
# take precedence.
_SETTINGS = """
    SELECT name, setting, CASE source WHEN 'default' THEN set_config(
        name, CASE name WHEN 'transaction_timeout' THEN %(twice)s ELSE %(once)s END, false
    ) END
    FROM pg_catalog.pg_settings
    WHERE name IN (
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout'
    )
"""


class PostgresConnection(psycopg.Connection[Any]):
    """A connection that closes itself if the server does not answer in time.

    The server's own timeouts end statements that wait for a lock or take too long, and transactions of frozen clients.
    They do not help if the server itself is frozen or the network is down; this class detects that.
    """

    brief_ms = BRIEF_MS
    """How long `wait_briefly` lets a statement wait for a lock, in milliseconds."""
    silence_s: float | None = CONNECT_S
    """How long to wait for each answer, in seconds; None for no limit."""
    shares_schema = True
    """Whether it shares the lock of the tables that it uses; see `SQLDatabase`."""
    _ahead = b""

    @classmethod
    def open(cls, timeout_s: float, *args: Any, **settings: Any) -> PostgresConnection:
        """Return a new connection.

        Args:
            timeout_s: the time limit for a statement, for waiting for a lock, and for an idle transaction. A whole
                transaction may take twice as long (limited from PostgreSQL 17 on). Settings of the URL, the role, the
                database and the server take precedence.
            args, settings: as `psycopg.connect` takes them.

        Raises:
            psycopg.Error: the connection cannot be made.
            StoreError: the database's encoding is not UTF-8, the only one that can hold all text.
        """
        connection = cls.connect(*args, **{"connect_timeout": CONNECT_S, **settings})
        try:
            _check_encoding(connection.info)
            ms = int(timeout_s * 1000)
            rows = connection.execute(_SETTINGS, {"once": str(ms), "twice": str(2 * ms)}).fetchall()
            connection.commit()
        except BaseException:
            connection.close()
            raise
        allowed_ms = {name: int(setting) if own_setting is None else ms for name, setting, own_setting in rows}
        statement_ms = allowed_ms["statement_timeout"]
        connection.brief_ms = min(BRIEF_MS, allowed_ms["lock_timeout"] or BRIEF_MS)
        connection.silence_s = PATIENCE * statement_ms / 1000 if statement_ms else None
        return connection

    def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:
        """Wait for an answer of the server; close the connection if there is none in time.

        If the server ends the connection, the error is the server's, which says why.
        """
        own_s = self.silence_s if timeout is None else None
        deadline = None if own_s is None else time.monotonic() + own_s
        if self.pgconn.pipeline_status == PipelineStatus.ON and not self.pgconn.ssl_in_use:
            gen = self._looking_ahead(gen)
        try:
            return super().wait(gen, interval, timeout if own_s is None else own_s)
        except psycopg.OperationalError as error:
            if deadline is not None and time.monotonic() >= deadline:
                self.close()  # a late answer would be taken for the answer to the next statement
                raise psycopg.OperationalError(f"no answer for {own_s:g} s") from error
            if error.sqlstate is None and (last := _FATAL.search(self._ahead)):
                raise psycopg.errors.lookup(last[1].decode())(last[2].decode(errors="replace")) from error
            raise
        finally:
            self._ahead = b""

    def _looking_ahead(self, gen: PQGen[Answer]) -> PQGen[Answer]:
        """Do what the generator does, and keep the beginning of what the server has sent last.

        With several statements under way, the driver drops the server's last error if it meets the end of the
        connection before it has sent all statements.
        """
        try:
            wait_state = next(gen)
            while True:
                ready = yield wait_state
                if ready & Ready.R:
                    self._ahead = self._peek() or self._ahead
                wait_state = gen.send(ready)
        except StopIteration as end:
            answer: Answer = end.value
            return answer

    def _peek(self) -> bytes:
        """Return what has arrived and was not read, or the beginning of it. Waits for nothing."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, self.pgconn.socket)
        try:
            return connection.recv(_AHEAD, socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0))
        except OSError:
            return b""
        finally:
            connection.detach()

    def wait_briefly(self, cursor: psycopg.Cursor[Any]) -> None:
        """Let the following statements of this transaction wait only `brief_ms` for locks."""
        cursor.execute(f"SET LOCAL lock_timeout = {self.brief_ms}".encode())

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Remove the time limits of the current transaction."""
        before, self.silence_s = self.silence_s, None
        try:
            self.execute("SET LOCAL statement_timeout = 0")
            if self.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
                self.execute("SET LOCAL transaction_timeout = 0")
            yield
        finally:
            self.silence_s = before


def _check_encoding(info: psycopg.ConnectionInfo) -> None:
    encoding = info.parameter_status("server_encoding")
    if encoding != "UTF8":
        reason = f"PostgreSQL database {info.dbname!r} has the encoding {encoding}, which cannot store all text"
        raise StoreError(f"{reason}: create one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0")
