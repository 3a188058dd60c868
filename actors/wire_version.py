"""What travels between processes is pickled by name, and says which version of turnwise has sent it.

Two processes of different versions understand each other while their wire versions fit. Each says its own, and the
oldest that it still understands: so the newer of two, which alone can know both, decides. What does not fit is refused
before it is unpickled, by an error that names both versions.

The version follows the pickle, so the bytes remain a pickle: what reads no further than its end does not see it.

What programs, Ray or Ray Serve pickle themselves is `packed` first, and passed as bytes. If it has to be an object, as
a handle or an argument of a program's own function, its `__reduce__` returns what `by_version` does.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import partial
from inspect import signature
from types import FunctionType, ModuleType
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
    """Return what another process asks for, or is to have.

    If the release of its sender is another one, dataclasses and models of turnwise in it have the fields that this
    version knows, those that are missing with their defaults.

    Raises:
        WireVersionError: its sender has another version, which does not fit this one, or has sent what this one does
            not know.
    """
    return _unpacked(data, _fit)


def unpacked_answer(data: bytes) -> Any:
    """Return what another process has answered, without the fields that this version does not know.

    What was asked for is done by then, so an error would tell a caller that it is not. What must not be left out
    raises the wire version, and a process of another one has refused the request.

    Raises:
        WireVersionError: the answer has a class that this version does not know, or lacks a field that this one needs.
    """
    return _unpacked(data, _fit_answer)


def unpacked_settings(data: bytes) -> Any:
    """Do what `unpacked` does, and compare the fields of settings whatever the release: they may be kept for long."""
    value = unpacked(data)
    if why := _fit(value):
        raise misfit(data, why)
    return value


def fit_answer(answer: object) -> None:
    """Make an answer that Ray has unpickled fit this version, like `unpacked_answer`. It does not say its version.

    Raises:
        WireVersionError: it lacks a field that this version needs.
    """
    if why := _fit_answer(answer):
        raise WireVersionError(str(OWN), "unknown", why)


def by_version(make: Callable[..., Any], **values: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what pickle needs to make an object again in a process of any version, for its `__reduce__`.

    Args:
        make: its class, or a function, which has the same name in each version.
        values: what that is called with. Those that the receiver does not know are refused by `WireVersionError`.
    """
    return _made, (_Parcel(make, values),)


class _Parcel:
    """What an object is made of. It is pickled as a message is sent."""

    def __init__(self, make: Callable[..., Any], values: Mapping[str, object]) -> None:
        self.make = make
        self.values = values

    def __reduce__(self) -> tuple[Callable[[bytes], _Parcel], tuple[bytes]]:
        return _opened, (packed((self.make, self.values)),)

    def __identity__(self) -> tuple[object, ...]:
        """See `identity`."""
        return self.make, self.values


def _opened(data: bytes) -> _Parcel:
    make, values = unpacked_settings(data)
    try:
        signature(make).bind(**values)
    except TypeError as error:
        raise misfit(data, f"{make.__name__}: {error}") from None
    return _Parcel(make, values)


def _made(parcel: _Parcel) -> Any:
    return parcel.make(**parcel.values)


def misfit(data: bytes, why: str) -> WireVersionError:
    """Return the error for what another process has sent and this version does not know."""
    return WireVersionError(str(OWN), str(_sender_of(data) or "unknown"), why)


def _unpacked(data: bytes, fit: Callable[[object], str]) -> Any:
    if data.endswith(OWN.trailer):
        return pickle.loads(data)
    sender = _sender_of(data)
    if sender is None:
        raise WireVersionError(str(OWN), "unknown", "it does not say its version")
    if not OWN.fits(sender):
        raise WireVersionError(str(OWN), str(sender), "their wire versions do not fit")
    try:
        value = pickle.loads(data)
    except WireVersionError:  # of something in it that says its version itself
        raise
    except Exception as error:  # a class of another version may raise anything where it is made
        raise WireVersionError(str(OWN), str(sender), f"{type(error).__name__}: {error}") from error
    if why := fit(value):
        raise misfit(data, why)
    return value


def _fit(value: object) -> str:
    """Make all that is of turnwise in a value fit this version; return what does not, empty if all does."""
    return next(filter(None, map(_misfit_of, _parts_of(value))), "")


def _fit_answer(value: object) -> str:
    """Do what `_fit` does, and leave out the fields that this version does not know."""
    for one in _parts_of(value):
        for name in _unknown(one):
            del vars(one)[name]
        if why := _misfit_of(one):
            return why
    return ""


def _parts_of(value: object) -> Iterator[Any]:
    """Yield the dataclasses and models of turnwise in a value, however deep, and whatever else holds them."""
    seen: dict[int, object] = {}
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one  # held, so that no other gets its id
        if isinstance(one, dict):
            pending += (*one, *one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one
        elif _defaults_of(type(one)) is not None and hasattr(one, "__dict__"):
            yield one
            pending += vars(one).values()
        else:
            pending += _pickled_with(one)


_PLAIN = (str, bytes, int, float, type(None), type, FunctionType, ModuleType)
"""What holds none."""


def _pickled_with(one: Any) -> Iterable[object]:
    """Return what an object of any other class is pickled with: such as a memory, a partial function, a program's own.

    Ray's handles are left out, since they count how often they are pickled.
    """
    if type(one).__module__.partition(".")[0] == "ray":
        return ()
    try:
        reduced = one.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - it does not pickle, so it was made here
        return ()
    if isinstance(reduced, str):
        return ()
    make, args, state, items, pairs = (*reduced, None, None, None)[:5]
    return make, args, state, list(items or ()), list(pairs or ())


def _misfit_of(one: Any) -> str:
    kind, values, defaults = type(one), vars(one), _defaults_of(type(one)) or {}
    if unknown := _unknown(one):
        return f"{kind.__name__} has {_listed(unknown)}, which this version does not know"
    missing = [name for name in defaults if name not in values]
    if required := sorted(name for name in missing if defaults[name] is None):
        return f"{kind.__name__} lacks {_listed(required)}, which this version needs"
    for name in missing:
        if (make := defaults[name]) is not None:
            values[name] = make()
    return ""


def _unknown(one: Any) -> list[str]:
    kind, known = type(one), _defaults_of(type(one)) or {}
    return sorted(name for name in vars(one) if name not in known and not hasattr(kind, name) and name[0] != "_")


def _defaults_of(kind: type) -> Mapping[str, Callable[[], object] | None] | None:
    """Return what makes the defaults of a class's fields, None for one that has none; None if it is not turnwise's.

    A pydantic model is known by its fields, since this module does not import pydantic.
    """
    if not kind.__module__.startswith("turnwise."):
        return None
    if is_dataclass(kind):
        return {field.name: _default_of(field) for field in fields(kind)}
    models: Mapping[str, Any] | None = getattr(kind, "model_fields", None)
    if models is None:
        return None
    return {
        name: None if field.is_required() else partial(field.get_default, call_default_factory=True)
        for name, field in models.items()
    }


def _default_of(field: Field[Any]) -> Callable[[], object] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    return None if field.default is MISSING else lambda: field.default


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _sender_of(data: bytes) -> WireVersion | None:
    at = data.rfind(_MARK, max(0, len(data) - _MOST))
    if at < 0 or not data.endswith(b"|"):
        return None
    try:
        version, understands_from, release = data[at + len(_MARK) : -1].decode().split(" ", 2)
        return WireVersion(int(version), int(understands_from), release)
    except ValueError:
        return None
