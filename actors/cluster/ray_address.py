"""Where Ray is: what RAY_ADDRESS names, and the Ray of this machine. Does not import Ray, which takes a second."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from turnwise.errors import ConfigError

CONNECT_S = 5.0
"""How long a Ray may take to accept a connection, in seconds."""


def check_ray_address() -> None:
    """Refuse a RAY_ADDRESS at which nobody answers: Ray itself would try for more than a minute.

    Raises:
        ConfigError: nobody does.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        _connect(address)
    except OSError as error:
        why = f"nobody answers there ({error}): correct or unset the variable, or start Ray: `ray start --head`"
        raise ConfigError("RAY_ADDRESS", address, why) from None


def local_ray() -> str | None:
    """Return the address of the Ray that `ray start` has started on this machine, which programs find by themselves."""
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"  # noqa: S108 - Ray's
    try:
        address = noted.read_text(encoding="utf-8").strip()
        return address if _connect(address) else None
    except OSError:
        return None


def variables_of(address: str) -> dict[str, str]:
    """Return the environment variables by which programs of this machine join a Ray of this machine.

    A Ray asks for the token of the user who started it, once there is one, unless it was told otherwise. It is used for
    a Ray that is found, but not for one that `RAY_ADDRESS` names.
    """
    variables = {"RAY_ADDRESS": address}
    if "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray" / "auth_token").exists():
        variables["RAY_AUTH_MODE"] = "token"
    return variables


def naming(address: str) -> str:
    """Return these variables as a shell takes them."""
    return " ".join(f"{name}={value}" for name, value in variables_of(address).items())


def _connect(address: str) -> bool:
    """Connect to an address of a host and a port; return whether it is one, and none such as "auto" or "local"."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return False
    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    return True
