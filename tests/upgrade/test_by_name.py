"""All classes with fields are pickled by the names of these, and what goes to another process says its version.

Pickle writes the values of named tuples, and of frozen dataclasses with slots, by position: one field more in a later
version would shift the others.
"""

import ast
import functools
import importlib
import inspect
import os
import pickle
import re
import sys
import warnings
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import turnwise
from turnwise.actors.wire_version import _Parcel
from turnwise.memory.values.named_tuples import by_name

PACKAGE = Path(turnwise.__file__).parent

STAY = {
    "actors.hosting.events_ahead": ["_PageAhead", "_Place"],
    "actors.session.runs.admission": ["Received"],
    "actors.session.runs.inbox": ["_AgentEnd"],
    "actors.session.state.quota_book": ["Moment", "_Known"],
    "adapters.front_ends.answers": ["_Read"],
    "adapters.langgraph.interrupts": ["_OpenCall"],
    "memory.archive.expiry": ["Left"],
    "memory.archive.file": ["ArchiveFile"],
    "memory.conversation.views.message_formats": ["_Functions"],
    "memory.longterm.items.rows": ["Loaded", "Revision"],
    "memory.longterm.items.sql_statements": ["DeletedRow"],
    "memory.longterm.recall.item_words": ["Part"],
    "memory.longterm.recall.passages": ["Passage"],
    "memory.longterm.recall.prominence": ["Level"],
    "memory.longterm.recall.prompt_sections": ["_Candidate"],
    "memory.longterm.recall.query": ["VectorTexts"],
    "memory.longterm.recall.ranking": ["Ranked", "_Sentences"],
    "memory.longterm.recall.user_index": ["Arrival"],
    "memory.longterm.retention.retention": ["Expiry", "Use", "_Noted"],
    "memory.providers.validation": ["_PlacedBlock"],
    "memory.stores.encrypted.keys": ["Place"],
    "memory.stores.marks": ["_Place"],
    "memory.stores.redis.store": ["_SessionRow"],
    "memory.stores.search.words": ["Word"],
    "replay.shadowed": ["ShadowRecords", "_Place"],
    "strategies.conformance_conversations": ["Case"],
    "testing.local_provider.assistant": ["Memory"],
}
"""The classes that never leave their process, by module; what has one of them as a field is here, too."""

LEFT_OUT = {
    "ToolContext": {"add_cost", "files", "memory", "schedules", "timeline"},
    "Arguments": {"model"},
}
"""The fields that another process makes itself, or has not."""

VERBS = (
    "actors.hosting.verbs",
    "actors.hosting.wire",
    "actors.memory.attached",
    "memory.event_store.base",
    "memory.longterm.base",
    "memory.stores.base",
    "replay.scale.pace",
    "replay.scale.sums",
    "replay.scale.worker",
)
"""The modules that say what processes ask each other."""


class Value:
    """Stands for the value of a field."""

    def __init__(self, name: str) -> None:
        self.name = name


def paths() -> Iterator[Path]:
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


@functools.cache
def classes() -> list[type]:
    """Return all classes of the package, once all of its modules are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray Serve's own
        for path in paths():
            if path.name != "__main__.py":
                parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
                importlib.import_module(".".join(parts).removesuffix(".__init__"))
    found, pending = set[type](), [object]
    while pending:
        new = set(type.__subclasses__(pending.pop())) - found
        found |= new
        pending += new
    return [kind for kind in found if str(kind.__module__).startswith("turnwise.")]


def fields_of(kind: Any) -> list[str]:
    if is_dataclass(kind):
        return [field.name for field in fields(kind)]
    return list(getattr(kind, "_fields" if issubclass(kind, tuple) else "model_fields", ()))


def pickled_parts(kind: Any) -> object:
    """Return what pickle is told of an object each field of which has a `Value`."""
    values = {name: Value(name) for name in fields_of(kind)}
    made: Any
    if issubclass(kind, tuple):
        made = tuple.__new__(kind, [values[name] for name in kind._fields])
    elif is_dataclass(kind):
        made = object.__new__(kind)  # type: ignore[arg-type]
        for name, value in values.items():
            object.__setattr__(made, name, value)
    else:
        made = kind.model_construct(**values)
    return made.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def values_in(parts: object, key: object = None) -> Iterator[tuple[object, str]]:
    """Yield the fields whose values are in a pickle, with the key under which each is; None if it is under none."""
    if isinstance(parts, Value):
        yield key, parts.name
    elif isinstance(parts, functools.partial):
        yield from values_in((parts.args, parts.keywords))
    elif isinstance(parts, _Parcel):
        yield from values_in(parts.values)
    elif isinstance(parts, dict):
        for name, value in parts.items():
            yield from values_in(value, name)
    elif isinstance(parts, list | tuple):
        for value in parts:
            yield from values_in(value)


def is_by_name(kind: Any) -> bool:
    found = list(values_in(pickled_parts(kind)))
    missing = set(fields_of(kind)) - {name for _, name in found}
    return all(key == name for key, name in found) and missing <= LEFT_OUT.get(kind.__name__, set())


def name_of(kind: type) -> str:
    return f"{kind.__module__.removeprefix('turnwise.')} {kind.__qualname__}"


def stays(kind: type) -> bool:
    return kind.__name__ in STAY.get(kind.__module__.removeprefix("turnwise."), ())


def test_each_class_is_pickled_by_the_names_of_its_fields_or_stays_in_its_process() -> None:
    known = [kind for kind in classes() if fields_of(kind)]
    assert len(known) > 400
    assert [name_of(kind) for kind in known if not stays(kind) and not is_by_name(kind)] == []
    hidden = [kind for kind in known if any(name.startswith("_") for name in fields_of(kind))]
    assert [name_of(kind) for kind in hidden if not stays(kind)] == [], "a receiver does not compare such fields"
    existing = {name_of(kind) for kind in known}
    assert {f"{module} {name}" for module, names in STAY.items() for name in names} <= existing


def sees(module: str, kind: type) -> bool:
    """Return whether a module has a name for a class, if only for type checkers."""
    if getattr(sys.modules[module], kind.__name__, None) is kind:
        return True
    source = inspect.getsource(sys.modules[module])
    return bool(re.search(rf"from {kind.__module__} import (\([^)]*|[^\n]*)\b{kind.__name__}\b", source))


def test_what_stays_in_its_process_is_part_of_nothing_that_may_leave_it() -> None:
    staying = [kind for kind in classes() if stays(kind)]
    for kind in classes():
        if not fields_of(kind) or stays(kind) or kind.__module__ not in sys.modules:
            continue
        for name, hint in vars(kind).get("__annotations__", {}).items():
            for part in staying:
                held = re.search(rf"\b{part.__name__}\b", str(hint)) and sees(kind.__module__, part)
                assert not held, f"{name_of(kind)}.{name} holds {name_of(part)}"
    for module in VERBS:
        assert not [name_of(part) for part in staying if sees(f"turnwise.{module}", part)], module


def test_the_rule_is_not_fooled() -> None:
    @dataclass(frozen=True)
    class Plain:
        first: int
        second: int

    @dataclass(slots=True)
    class Changing:
        first: int
        second: int

    class Named(NamedTuple):
        first: int
        second: int

        def __reduce__(self) -> Any:
            return by_name(self)

    assert all(map(is_by_name, (Plain, Changing, Named)))

    @dataclass(frozen=True, slots=True)
    class _Slotted:
        first: int
        second: int

    class Bare(NamedTuple):
        first: int
        second: int

    class Listed(Plain):
        def __getstate__(self) -> list[int]:
            return [self.first, self.second]

    class Swapped(Plain):
        def __getstate__(self) -> dict[str, int]:
            return {"first": self.second, "second": self.first}

    class Forgetful(Plain):
        def __getstate__(self) -> dict[str, int]:
            return {"first": self.first}

    class Called(Plain):
        def __reduce__(self) -> Any:
            return functools.partial(type(self), self.first, second=self.second), ()

    made = namedtuple("made", "first second")  # noqa: PYI024 - another way to make one
    assert not any(map(is_by_name, (_Slotted, Bare, made, Listed, Swapped, Forgetful, Called)))


# What goes to another process

PICKLES = {
    "actors/wire_version.py": "all that is sent",
    "actors/hosting/identity.py": "by value, for `packed`",
    "actors/in_process/runtime.py": "for digests, in one process",
    "conformance/engines.py": "a copy, in one process",
    "conformance/placements.py": "a copy, in one process",
    "memory/longterm/index/chroma_process.py": "to its own child",
    "memory/longterm/recall/embedding_function.py": "to see whether something pickles",
}
"""The modules that pickle, and what."""

SENT = {
    "request": "is packed by who asks",
    "arguments": "are packed before",
    "[request for request, _ in batch]": "are packed by who asks",
    "due_at": "is a number",
    "left_s, WHY": "are a number and a text",
    "**arguments": "are of a program's own tool; a context in them says its version",
}
"""What is passed to Ray as it is."""


def trees(*words: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the files that have one of these words."""
    for path in paths():
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(text)


def test_nothing_is_pickled_without_its_version() -> None:
    found, picklers = set(), {"pickle", "cloudpickle", "ray.cloudpickle", "marshal", "dill"}
    for path, tree in trees("pickle", "marshal", "dill"):
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if picklers & set(names):
                found.add(path)
    assert found == set(PICKLES)


def test_what_ray_is_given_is_packed() -> None:
    calls = set()
    for path, tree in trees(".remote("):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "remote"):
                continue
            if ast.unparse(node.func.value) == "ray":  # it makes a class or a function one of Ray's
                continue
            given = ", ".join([*map(ast.unparse, node.args), *(ast.unparse(keyword) for keyword in node.keywords)])
            calls.add(given)
            is_packed = not given or re.fullmatch(r"(packed|pickled)\(.*\)", given)
            assert is_packed or given in SENT, f"{path}:{node.lineno} gives Ray {given}: pack it"
    assert set(SENT) <= calls
