"""`identity`: a digest by which equal engines, settings and memories are recognised, however they are pickled."""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pydantic import BaseModel

from turnwise.actors.wire_version import packed


def identity(value: object, *, dumps: Callable[[object], bytes] | None = None) -> str:
    """Return a digest that equal settings share in every process: 64 hexadecimal digits.

    Dataclasses, pydantic models and all else that pickles count by their class and what they hold, whatever the order
    in mappings and sets. Anything that a process can import is identified by its name. Functions and classes that
    travel by value, such as those of a script or a notebook, count by their code and what that refers to, line numbers
    and comments aside: cloudpickle gives such a class another random id in each process. An engine that has an
    `engine_name` counts by that alone.

    Args:
        dumps: pickles what is of no kind named here; cloudpickle if omitted.

    Raises:
        Exception: some of it cannot be pickled.
    """
    return _Walk(dumps or _cloudpickled).digest(value).hex()


def pickled(value: object) -> bytes:
    """Return a value as it travels to other processes: definitions of a script or a notebook travel by value."""
    return packed(value, _cloudpickled)


def _cloudpickled(value: object) -> bytes:
    from ray import cloudpickle  # here, since a process without Ray needs none

    data: bytes = cloudpickle.dumps(value)
    return data


class _Walk:
    def __init__(self, dumps: Callable[[object], bytes]) -> None:
        self._dumps = dumps
        self._digests: dict[int, tuple[object, bytes]] = {}
        """Digests by object; the objects are held, so that no id comes twice."""
        self._under_way: dict[int, int] = {}

    def digest(self, value: object) -> bytes:
        if value is None or type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
        if entry := self._digests.get(id(value)):
            _, digest = entry  # with the value itself, so that no other gets its id
            return digest
        if (depth := self._under_way.get(id(value))) is not None:
            return _hash("again", str(len(self._under_way) - depth).encode())
        self._under_way[id(value)] = len(self._under_way)
        digest = _hash(*self._parts(value))
        del self._under_way[id(value)]
        self._digests[id(value)] = value, digest
        return digest

    def _parts(self, value: Any) -> Iterable[str | bytes]:  # noqa: PLR0911, PLR0912 - one for each kind
        """Return what a value is made of, as names and digests."""
        kind = type(value)
        if isinstance(name := getattr(value, "engine_name", None), str) and name and not isinstance(value, type):
            return "engine", name
        if callable(own := getattr(kind, "__identity__", None)):
            return kind.__qualname__, self.digest(own(value))
        if kind in (tuple, list):
            return kind.__name__, *map(self.digest, value)
        if kind in (set, frozenset):
            return kind.__name__, *sorted(map(self.digest, value))
        if kind is dict:
            return "dict", *self._items(value.items())
        if isinstance(value, ModuleType):
            return "module", value.__name__
        if isinstance(value, type | FunctionType | BuiltinFunctionType) and _is_importable(value):
            return "import", value.__module__, value.__qualname__
        if isinstance(value, type):
            own_names = {name: member for name, member in vars(value).items() if not _is_made_by_machine(name)}
            return "class", value.__qualname__, *map(self.digest, (kind, value.__bases__, own_names))
        if isinstance(value, FunctionType):
            return "function", value.__qualname__, *map(self.digest, _parts_of_function(value))
        if isinstance(value, CodeType):
            return "code", *map(self.digest, (value.co_code, value.co_consts, value.co_names, value.co_varnames))
        if isinstance(value, CellType):
            return "cell", self.digest(value.cell_contents) if _is_full(value) else ""
        if isinstance(value, MethodType):
            return "method", self.digest(value.__func__), self.digest(value.__self__)
        if isinstance(value, classmethod | staticmethod):
            return kind.__name__, self.digest(value.__func__)
        if isinstance(value, property):
            return "property", *map(self.digest, (value.fget, value.fset))
        if _is_remote_function(value):
            return "remote", self.digest(value._function), self.digest(value._default_options)  # noqa: SLF001 - no other way
        if isinstance(value, BaseModel):
            held = (dict(value), value.__pydantic_extra__, value.__pydantic_private__)
            return "model", self.digest(kind), *map(self.digest, held)
        return self._pickled(value)

    def _pickled(self, value: Any) -> Iterable[str | bytes]:
        """Return what a value is made of by the protocol of pickle; its pickle's digest if it has no part in that."""
        try:
            reduce: Any = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - `dumps` may know more kinds; what it cannot pickle either is raised there
            return "pickle", hashlib.sha256(self._dumps(value)).digest()
        if isinstance(reduced, str):
            return "import", str(getattr(value, "__module__", None)), reduced
        make, args, state, entries, items = (*reduced, None, None, None)[:5]
        parts = map(self.digest, (make, args, state, list(entries or ())))
        return "object", *parts, *self._items(items or ())

    def _items(self, items: Iterable[tuple[object, object]]) -> list[bytes]:
        return sorted(self.digest(key) + self.digest(value) for key, value in items)


_PLAIN = (bool, int, float, complex, str, bytes)

_MACHINE_MADE = {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"}


def _is_made_by_machine(name: str) -> bool:
    """Return whether an attribute of a class says nothing that the rest of it does not, and may vary by process."""
    return name in _MACHINE_MADE or name.startswith(("__pydantic_", "__dataclass_", "_abc_", "__abstractmethods__"))


def _parts_of_function(function: FunctionType) -> Iterable[object]:
    names = sorted(_global_names(function.__code__) & function.__globals__.keys())
    used = {name: function.__globals__[name] for name in names}
    return (
        function.__code__,
        function.__defaults__,
        function.__kwdefaults__,
        function.__closure__,
        vars(function),
        used,
    )


def _global_names(code: CodeType) -> set[str]:
    names = {instruction.argval for instruction in dis.get_instructions(code) if instruction.opname.endswith("_GLOBAL")}
    return names.union(*(_global_names(const) for const in code.co_consts if isinstance(const, CodeType)))


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _is_remote_function(value: object) -> bool:
    ray = sys.modules.get("ray.remote_function")
    return ray is not None and isinstance(value, ray.RemoteFunction)


def _is_importable(value: Any) -> bool:
    """Return whether pickle names the class or function, so that each process imports its own."""
    module, name = value.__module__, value.__qualname__
    if module == "builtins":
        return True
    cloudpickle = sys.modules.get("ray.cloudpickle")  # nobody has registered a module where it was not imported
    by_value = cloudpickle.list_registry_pickle_by_value() if cloudpickle else ()
    if module in (None, "__main__") or any(f"{module}.".startswith(f"{prefix}.") for prefix in by_value):
        return False
    importable: Any = sys.modules.get(module)
    for part in name.split("."):
        importable = getattr(importable, part, None)
    return importable is value


def _hash(*parts: str | bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
