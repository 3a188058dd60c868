"""What travels between processes is pickled by name, and says which version of turnwise has sent it.

Two processes of different versions understand each other while their wire versions fit. Each says its own, and the
oldest that it still understands: so the newer of two, which alone can know both, decides. What does not fit is refused
before it is unpickled, by an error that names both versions.

The version follows the pickle, so the bytes remain a pickle: what reads no further than its end does not see it.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from turnwise import __version__
from turnwise.errors import WireVersionError

WIRE_VERSION = 1
"""The version of messages and settings. Increase it if an older process would misunderstand one: a verb with other
arguments, an answer of another shape, a field that must not be ignored. What only adds a verb keeps it."""

UNDERSTANDS_FROM = 1
"""The oldest wire version that this code understands, and whose processes understand this code."""

_MARK = b"|turnwise "
_MOST = 200
"""The most bytes that a version takes after a pickle."""


@dataclass(frozen=True)
class WireVersion:
    """What a process says of itself with all that it sends."""

    version: int
    understands_from: int
    release: str
    """The version of the package, for messages."""

    def __str__(self) -> str:
        return f"{self.release} (wire version {self.version})"

    def fits(self, other: WireVersion) -> bool:
        """Return whether processes of these two versions understand each other: the newer one knows."""
        older, newer = sorted((self, other), key=lambda one: one.version)
        return newer.understands_from <= older.version

    @property
    def trailer(self) -> bytes:
        """What follows each pickle."""
        return _MARK + f"{self.version} {self.understands_from} {self.release}|".encode()


OWN = WireVersion(WIRE_VERSION, UNDERSTANDS_FROM, __version__)


def packed(value: object, dumps: Callable[[object], bytes] | None = None) -> bytes:
    """Return a value as it travels to another process.

    Args:
        dumps: what pickles it; pickle itself if omitted.
    """
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if dumps is None else dumps(value)
    return data + OWN.trailer


def unpacked(data: bytes) -> Any:
    """Return what another process has sent.

    If the release of its sender is another one, dataclasses of turnwise in it have the fields that this version knows,
    those that are missing with their defaults.

    Raises:
        WireVersionError: its sender has another version, which does not fit this one, or has sent what this one does
            not know.
    """
    if data.endswith(OWN.trailer):
        return pickle.loads(data)
    sender = _sender_of(data)
    if sender is None:
        raise WireVersionError(str(OWN), "unknown", "it does not say its version")
    if not OWN.fits(sender):
        raise WireVersionError(str(OWN), str(sender), "their wire versions do not fit")
    try:
        value = pickle.loads(data)
    except (AttributeError, ImportError, TypeError) as error:
        raise WireVersionError(str(OWN), str(sender), f"{type(error).__name__}: {error}") from error
    if misfit := _misfit(value):
        raise WireVersionError(str(OWN), str(sender), misfit)
    return value


def unpacked_settings(data: bytes) -> Any:
    """Do what `unpacked` does, and compare the fields of settings whatever the release: they may be kept for long."""
    value = unpacked(data)
    if misfit := _misfit(value):
        raise WireVersionError(str(OWN), str(_sender_of(data)), misfit)
    return value


def _sender_of(data: bytes) -> WireVersion | None:
    at = data.rfind(_MARK, max(0, len(data) - _MOST))
    if at < 0 or not data.endswith(b"|"):
        return None
    try:
        version, understands_from, release = data[at + len(_MARK) : -1].decode().split(" ", 2)
        return WireVersion(int(version), int(understands_from), release)
    except ValueError:
        return None


def _misfit(value: object) -> str:
    """Return what this version does not know in dataclasses of turnwise, however deep; empty if it knows all.

    Fields that are missing get their defaults.
    """
    seen: set[int] = set()
    pending = [value]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one
        elif is_dataclass(one) and not isinstance(one, type) and type(one).__module__.startswith("turnwise."):
            if misfit := _misfit_of(one):
                return misfit
            pending += _values_of(one)
    return ""


def _misfit_of(one: Any) -> str:
    kind, values = type(one), getattr(one, "__dict__", None)
    if values is None:
        return ""
    known = {field.name: field for field in fields(one)}
    unknown = sorted(name for name in values if name not in known and not hasattr(kind, name) and name[0] != "_")
    if unknown:
        return f"{kind.__name__} has {_listed(unknown)}, which this version does not know"
    missing = [field for name, field in known.items() if name not in values]
    required = sorted(field.name for field in missing if field.default is MISSING and field.default_factory is MISSING)
    if required:
        return f"{kind.__name__} lacks {_listed(required)}, which this version needs"
    for field in missing:
        default = field.default if field.default_factory is MISSING else field.default_factory()
        object.__setattr__(one, field.name, default)
    return ""


def _values_of(one: Any) -> Iterable[object]:
    return getattr(one, "__dict__", {}).values()


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
