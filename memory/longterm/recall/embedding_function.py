"""Makes embedding functions picklable: `portable` replaces one by its class and config."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Mapping
from typing import Any

from turnwise.errors import StoreError


def portable(function: Any) -> Any:
    """Return what is pickled in place of an embedding function: itself, or a `ConfiguredEmbedding`.

    Those of Chroma's package always travel by their config, since they hold clients, keys or whole models.
    """
    kind = type(function)
    if not callable(getattr(kind, "build_from_config", None)):
        return function
    if not kind.__module__.startswith("chromadb.") and _pickles(function):
        return function
    try:
        name, config = function.name(), function.get_config()
    except (AttributeError, NotImplementedError, TypeError):
        return function
    return ConfiguredEmbedding(kind, name, config) if isinstance(config, Mapping) else function


class ConfiguredEmbedding:
    """An embedding function that is built from its config at first use, in the process that uses it.

    Thread-safe. Secrets are not in a config: the function reads them from its process's environment, so they must be
    set on the nodes where memories run.

    Args:
        kind: the class of the function, which has `build_from_config` as Chroma's classes do.
        name: the name by which Chroma knows the class.
        config: what the function's `get_config` returned.
    """

    def __init__(self, kind: Any, name: str, config: Mapping[str, Any]) -> None:
        self._kind = kind
        self._name = name
        self._config = dict(config)
        self._function: Any = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(ConfiguredEmbedding, kind=self._kind, name=self._name, config=self._config), ()

    def __repr__(self) -> str:
        return f"{self._kind.__name__}({self._name!r}, built from its config)"

    def __call__(self, input: Any) -> Any:
        """Return a vector for each text.

        Raises:
            StoreError: the function cannot be built here.
        """
        return self._built()(input)

    def embed_query(self, input: Any) -> Any:
        """Return a vector for each query. Raises as a call does."""
        function = self._built()
        return getattr(function, "embed_query", function)(input)

    def name(self) -> str:
        """Return the name by which Chroma knows the function."""
        return self._name

    def get_config(self) -> dict[str, Any]:
        """Return the config that the function is built from."""
        return dict(self._config)

    def _built(self) -> Any:
        with self._lock:
            if self._function is None:
                try:
                    self._function = self._kind.build_from_config(dict(self._config))
                except Exception as error:
                    reason = f"cannot be built from its config in this process: {error}"
                    remedy = "set the environment variables and install the packages that it needs on the memory's node"
                    raise StoreError(f"embedding function {self._name!r} {reason}; {remedy}") from error
            return self._function


def _pickles(function: Any) -> bool:
    try:
        pickle.dumps(function)
    except Exception:  # noqa: BLE001 - whatever it is that does not pickle
        return False
    return True
