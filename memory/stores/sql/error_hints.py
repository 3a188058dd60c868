"""Database errors: the remedy for each, and a message that quotes no stored text."""

from __future__ import annotations

import sqlite3

_UNREACHED = "is it reachable, writable and a turnwise store?"
_FILE = "is it reachable, writable and a turnwise store? Look at the path, its folder, and who may read and write them"
_ROOM = "free space on its disk, then try again: nothing was written, and stored data can be read"
_AGAIN = "another transaction holds its locks, or it is overloaded: try again"
_OF_SQLITE = {
    sqlite3.SQLITE_FULL: _ROOM,
    sqlite3.SQLITE_BUSY: _AGAIN,
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it from a backup",
    sqlite3.SQLITE_IOERR: "is its disk full or broken?",
    sqlite3.SQLITE_CANTOPEN: _FILE,
    sqlite3.SQLITE_READONLY: _FILE,
    sqlite3.SQLITE_PERM: _FILE,
    sqlite3.SQLITE_AUTH: _FILE,
    sqlite3.SQLITE_NOTADB: _FILE,
    sqlite3.SQLITE_TOOBIG: "it is too large for a row of the database: make it shorter",
}
_READ_ONLY = (
    "this server is a read-only standby, or default_transaction_read_only is set: write to the primary, by its URL or"
    " by one that names all servers and ?target_session_attrs=read-write"
)
_OF_POSTGRES_CLASS = {
    "08": _UNREACHED,
    "22": "the database does not take such a value: leave out null characters, and keep numbers within 64 bits",
    "28": "the URL needs a user, and a password, that the server takes",
    "3D": "there is no such database: CREATE DATABASE, or name another one in the URL",
    "40": "another transaction was in its way: try again",
    "42": "its tables are not as turnwise makes them: restore them from a backup",
    "53": "it has no more memory: try again, or raise its limits",
    "54": "it is too large for a row or an index of the database: make it shorter",
    "57": _UNREACHED,
}
"""By class of SQLSTATE: connections; data; access; catalog; rollbacks; syntax, rights; resources; limits; operators."""
NO_ROOM = (
    "let fewer processes use it (Packed), give each fewer connections (SQLStore(url, connections=2)), or raise"
    " max_connections, or the CONNECTION LIMIT of the role or the database"
)
"""The remedy where a server allows no more connections."""
_NOT_WRITABLE = "session is read-only"
"""What the driver says if none of the servers that a URL names takes writes."""
_OF_CONNECTING = {
    _NOT_WRITABLE: "25006",
    "authentication failed": "28",
    "no pg_hba.conf entry": "28",
    "does not exist": "3D",
    "too many": "53300",
    "connection slots are reserved": "53300",
    "no more connections allowed": "53300",
}
"""SQLSTATEs, or their classes, by what is said to who gets no connection: the driver tells none then."""
_REFUSED = "the database refused it, and nothing was written: its log says more"

_OF_POSTGRES = {
    "42501": "the role lacks a right that the message names: GRANT it (`turnwise migrate --grant`), or be the owner",
    "53100": _ROOM,
    "53300": NO_ROOM,
    "55P03": _AGAIN,
    "57014": _AGAIN,
    "25006": _READ_ONLY,
    "3F000": "none of the schemas of its search_path exists: CREATE SCHEMA, or name another one in the URL",
    "42P01": "its tables were dropped: restore them from a backup; otherwise empty ones are created at the next use",
}
"""By SQLSTATE: rights; disk full; connections; lock not available; statement timeout; read-only; schema; table."""

_NO_OPTION = "invalid connection option"
_OPTION = "settings of the server go into the URL as ?options=-c%20search_path%3Da%2Cb"


def remedy(error: object) -> str:
    """Return advice for a driver's error, for the end of the error message."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits are the extended code
    state = getattr(error, "sqlstate", None) or ""
    if _NO_OPTION in str(error):
        return _OPTION
    state = state or _state_of_refusal(error)
    advice = _OF_SQLITE.get(primary) or _OF_POSTGRES.get(state) or _OF_POSTGRES_CLASS.get(state[:2])
    return advice or (_REFUSED if primary or state or not _is_of_connection(error) else _UNREACHED)


def _state_of_refusal(error: object) -> str:
    """Return the SQLSTATE, or its class, with which a server refused a connection; empty for another error."""
    message = str(error) if "FATAL:" in str(error) or _NOT_WRITABLE in str(error) else ""
    return next((code for words, code in _OF_CONNECTING.items() if words in message), "")


def has_no_room(error: object) -> bool:
    """Return whether a server refused a connection because it has too many."""
    return (getattr(error, "sqlstate", None) or _state_of_refusal(error)) == "53300"


def _is_of_connection(error: object) -> bool:
    """Return whether an error without a code can say that a server was not reached."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return type(error).__name__ == "Error" or bool(names & {"OperationalError", "InterfaceError", "OSError"})


def lacks_tables(error: object) -> bool:
    """Return whether a driver's error says that a table does not exist."""
    is_sqlite = isinstance(error, sqlite3.OperationalError) and "no such table" in str(error)
    return is_sqlite or getattr(error, "sqlstate", None) == "42P01"


_QUOTING = ("22", "23")
"""Classes of SQLSTATE whose messages may quote values: data exceptions, and constraints."""


def is_undecodable(error: object) -> bool:
    """Return whether the error is SQLite's for a text that is not UTF-8. Its message quotes that text."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")


def without_text(error: BaseException | None) -> BaseException:
    """Return an equivalent driver's error whose message quotes neither stored text nor text to store."""
    kind = type(error) if isinstance(error, Exception) else Exception
    state = getattr(error, "sqlstate", None) or ""
    if is_undecodable(error):
        message = "a text in it is not UTF-8"
    elif state.startswith(_QUOTING):
        diagnosed = getattr(error, "diag", None)
        about = f"{getattr(diagnosed, 'table_name', None) or ''} {getattr(diagnosed, 'constraint_name', None) or ''}"
        message = f"{kind.__name__} {about.strip()}".strip()
    else:
        message = next(iter(str(error).strip().splitlines()), kind.__name__)
    return kind(message)
