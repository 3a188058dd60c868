"""Where Ray is: what RAY_ADDRESS names, and the Ray of this machine. Does not import Ray, which takes a second."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from turnwise.errors import ConfigError

CONNECT_S = 5.0
"""How long a Ray may take to accept a connection, and to answer the first bytes, in seconds."""

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of HTTP/2 begins, which Ray speaks (RFC 9113, section 3.4): the preface, and settings without values."""

_SETTINGS, _HEADER = 4, 9
"""The type of a server's first frame in HTTP/2, and the bytes of a frame's header, whose fourth is the type."""


def check_ray_address() -> None:
    """Refuse a RAY_ADDRESS at which no Ray answers: Ray itself would try for more than a minute.

    Raises:
        ConfigError: nobody does.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        _connect(address)
    except OSError as error:
        reason = f"no Ray answers there ({error}): correct or unset the variable, or start Ray: `ray start --head`"
        raise ConfigError("RAY_ADDRESS", address, reason) from None


def local_ray() -> str | None:
    """Return the address of the Ray that `ray start` has started on this machine, which programs find by themselves."""
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"  # noqa: S108 - Ray's
    try:
        address = noted.read_text(encoding="utf-8").strip()
        return address if _connect(address) else None
    except OSError:
        return None


def ray_to_join() -> str | None:
    """Return the address of the Ray that programs join here; None if there is none.

    It is what `RAY_ADDRESS` names, such as `local`, by which each program starts its own; else the Ray of this machine.
    """
    return os.environ.get("RAY_ADDRESS") or local_ray()


def starts_own_ray() -> bool:
    """Return whether a process that is not connected to a Ray would start one, which ends with it."""
    return ray_to_join() in (None, "local")


def _connect(address: str) -> bool:
    """Connect to an address of a host and a port; return whether it is one, and none such as "auto" or "local".

    Raises:
        OSError: no Ray answers there.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return False
    with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
            _check_speaks_http2(connection)
    return True


def _check_speaks_http2(connection: socket.socket) -> None:
    """Raise an OSError unless the server begins as one of HTTP/2 does. Any other program may have the port by now."""
    connection.sendall(_HELLO)
    answer = b""
    while len(answer) < _HEADER:
        if not (more := connection.recv(_HEADER - len(answer))):
            raise OSError("it closed the connection")
        answer += more
    if answer[3] != _SETTINGS:
        raise OSError("another program has the port")
