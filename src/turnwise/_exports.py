"""Lazy exports: public modules import each name at first use, so that processes start without unused imports.

A public module has a stub (`.pyi`) beside it that says where each of its names is; type checkers read the same stub.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def exports(module: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a public module, by the stub beside its file."""
    lookup: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            lookup |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}

    def find(name: str) -> object:
        if name not in lookup:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, its_name = lookup[name]
        from turnwise.memory.values.collection_pauses import importing

        with importing(home):
            owner = import_module(home)
        return getattr(owner, its_name) if hasattr(owner, its_name) else import_module(f"{home}.{its_name}")

    return find, lambda: sorted(lookup), sorted(lookup)
