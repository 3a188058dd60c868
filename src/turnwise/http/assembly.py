"""`assemble`: makes the manager and the app that a `ServiceConfig` describes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from fastapi import FastAPI

from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool
from turnwise.errors import ConfigError
from turnwise.http.app import create_app
from turnwise.http.auth import Auth, BearerTokens
from turnwise.http.config import EngineConfig, MemoryTable, ServiceConfig, Source
from turnwise.http.middleware.origins import KnownHosts
from turnwise.http.service import Service
from turnwise.memory.longterm.base import LongTermMemory
from turnwise.memory.longterm.extraction.memory import ExtractiveMemory
from turnwise.memory.longterm.lexical import LexicalMemory
from turnwise.memory.longterm.static import StaticMemory
from turnwise.memory.longterm.vector import VectorMemory
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.working.formats import Markdown
from turnwise.memory.working.memory import WorkingMemory
from turnwise.strategies.delete_oldest import DeleteOldest
from turnwise.strategies.flush_to_memory import FlushToMemory
from turnwise.strategies.keep_last import KeepLast
from turnwise.strategies.strategy import OverflowStrategy
from turnwise.strategies.summarize import Summarize
from turnwise.strategies.trim import Trim

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that only this machine reaches."""

NAMES = (*LOOPBACK, "[::1]")
"""How requests name these hosts; the names may be compared with and without brackets."""

_STRATEGIES: Mapping[str, type[Any]] = {
    "trim": Trim,
    "delete_oldest": DeleteOldest,
    "keep_last": KeepLast,
    "summarize": Summarize,
    "flush": FlushToMemory,
}

_MEMORIES: Mapping[str, type[Any]] = {"vector": VectorMemory, "lexical": LexicalMemory}


@dataclass(frozen=True)
class Assembly:
    """A service that was put together and not started."""

    config: ServiceConfig
    manager: AsyncSessionManager
    """Enter it before the app is served, and leave it afterwards."""
    app: FastAPI
    engines: Mapping[str, EngineBuilder]

    @property
    def service(self) -> Service:
        """What the app's requests share."""
        return cast(Service, self.app.state.service)


def assemble(config: ServiceConfig, source: Source) -> Assembly:
    """Import and make all that a configuration names; start and connect nothing.

    Raises:
        ConfigError: something cannot be made, or everybody could reach the service; it names the key and its place.
    """
    check_reach(config, source)
    engines = _engines(config, source)
    memories = [_memory(table, n, engines, source) for n, table in enumerate(config.memories)]
    auth = _auth(config, source)
    with source.at("encryption"):
        encryption = _imported(config.encryption, Encryption) if config.encryption else None
    working_memory, overflow = _working_memory(config, source), overflow_of(config, engines, source)
    with source.within():
        manager = AsyncSessionManager(
            config.store,
            engine=engines,
            memory=memories,
            working_memory=working_memory,
            overflow=overflow,
            placement=config.session_placement,
            config=config.session,
            history_store=config.history_store,
            files=config.files,
            namespace=config.namespace,
            encryption=encryption,
            telemetry=config.telemetry,
        )
    app = create_app(manager, auth=auth, settings=config.http)
    if config.console:
        _mount_console(app, config, source)
    if not config.has_auth and not config.anonymous:
        app.add_middleware(KnownHosts, hosts=NAMES)
    return Assembly(config, manager, app, engines)


def check_reach(config: ServiceConfig, source: Source) -> None:
    """Refuse to let other machines in without credentials.

    Raises:
        ConfigError: the service has no tokens and another host than loopback.
    """
    if config.host not in LOOPBACK and not config.has_auth and not config.anonymous:
        reason = (
            "without tokens, everybody who reaches it may do everything: give --tokens FILE, or listen on 127.0.0.1"
        )
        raise source.error(("host",), config.host, reason)


def imported(path: str) -> Any:
    """Return the object at an import path, such as `my_agents.tools:weather`.

    Raises:
        ConfigError: the module cannot be imported, or has no such name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        reason = f"it cannot be imported ({type(error).__name__}: {error}): is its folder in PYTHONPATH?"
        raise ConfigError("object", path, reason) from error


def _imported(path: str, kind: Any) -> Any:
    value = imported(path)
    if not isinstance(value, kind) or isinstance(value, type):
        raise ConfigError("object", path, f"it is a {type(value).__name__} and no {kind.__name__}")
    return value


def _engines(config: ServiceConfig, source: Source) -> dict[str, EngineBuilder]:
    if not config.engines:
        raise source.error(
            ("engines",), "{}", "there is no engine: give --model, [engines.<name>] in a file, or --demo"
        )
    return {name: _engine(table, source, ("engines", name)) for name, table in config.engines.items()}


def _engine(table: EngineConfig, source: Source, path: tuple[str, str]) -> EngineBuilder:
    if table.object:
        with source.at(*path, "object"):
            return cast(EngineBuilder, _imported(table.object, EngineBuilder))
    tools: list[Tool] = []
    for n, tool_path in enumerate(table.tools):
        with source.at(*path, "tools", n):
            value = imported(tool_path)
            tools += value if isinstance(value, list) else [_imported(tool_path, Tool)]
    settings = table.model_dump(
        exclude_unset=True, exclude={"object", "key", "tools", "max_steps", "tool_timeout_s", "azure"}
    )
    with source.within(*path):
        registry = ToolRegistry(*tools, max_steps=table.max_steps, timeout_s=table.tool_timeout_s)
        return OpenAIEngine(**settings, azure=table.azure, api_key=_key(table, source, path), tools=registry)


def _key(table: EngineConfig, source: Source, path: tuple[str, str]) -> str | None:
    """Return the key; None if the server may need none."""
    name = table.key or "OPENAI_API_KEY"
    key = os.environ.get(name)
    if key:
        return key
    if table.key or not (table.base_url or os.environ.get("OPENAI_BASE_URL")):
        reason = "the environment variable with the key is not set: set it, name another as 'key', or try --demo"
        raise source.error((*path, "key"), name, reason)
    return None


def _memory(table: MemoryTable, n: int, engines: Mapping[str, EngineBuilder], source: Source) -> LongTermMemory:
    path = ("memories", n)
    if table.object:
        with source.at(*path, "object"):
            return cast(LongTermMemory, _imported(table.object, LongTermMemory))
    label = {"name": table.name, "max_tokens": table.max_tokens}
    with source.within(*path):
        if table.kind == "static":
            return StaticMemory.from_file(table.file or "", **label)  # type: ignore[arg-type]
        if table.kind == "extractive":
            engine = _named(table.engine, engines, source, (*path, "engine"))
            return ExtractiveMemory(engine, table.store or "", **label)  # type: ignore[arg-type]
        return cast(LongTermMemory, _MEMORIES[table.kind](table.store, **label))


def _named(
    name: str | None, engines: Mapping[str, EngineBuilder], source: Source, path: Sequence[str | int]
) -> EngineBuilder:
    """Return the engine with this name; the first one if None."""
    if name is None:
        return next(iter(engines.values()))
    if name not in engines:
        raise source.error(tuple(path), name, f"there is no such engine; there are {', '.join(engines)}")
    return engines[name]


def _working_memory(config: ServiceConfig, source: Source) -> WorkingMemory | None:
    if (table := config.working_memory) is None:
        return None
    with source.within("working_memory"):
        form = Markdown(table.template) if table.template else None
        return WorkingMemory(table.store, form=form, per=table.per, max_bytes=table.max_bytes)


def overflow_of(
    config: ServiceConfig, engines: Mapping[str, EngineBuilder], source: Source
) -> OverflowStrategy | Literal["default"] | None:
    """Return the strategy that is configured, "default" for the manager's own, or None for none."""
    table = config.overflow
    settings = table.model_dump(exclude_unset=True, exclude={"strategy", "object", "engine"})
    if table.object:
        with source.at("overflow", "object"):
            return cast(OverflowStrategy, _imported(table.object, OverflowStrategy))
    strategy = _STRATEGIES.get(str(table.strategy))
    taken = set(getattr(strategy, "__dataclass_fields__", ()))
    for key in settings:
        if key not in taken:
            raise source.error(("overflow", key), settings[key], f"the strategy {table.strategy!r} takes no such key")
    if table.engine and strategy is not Summarize:
        raise source.error(("overflow", "engine"), table.engine, "only 'summarize' has an engine")
    if strategy is None:
        return "default" if table.strategy == "default" else None
    with source.within("overflow"):
        if strategy is Summarize:
            return Summarize(_named(table.engine, engines, source, ("overflow", "engine")), **settings)
        return cast(OverflowStrategy, strategy(**settings))


def _auth(config: ServiceConfig, source: Source) -> Auth | None:
    if config.auth:
        with source.at("auth"):
            function = imported(config.auth)
            if not callable(function):
                raise ConfigError("auth", config.auth, "it is no function")
            return cast(Auth, function)
    if config.tokens:
        with source.at("tokens"):
            return BearerTokens.from_file(config.tokens)
    if config.tokens_variable:
        with source.at("tokens_variable"):
            return BearerTokens.from_environment(config.tokens_variable)
    return None


def _mount_console(app: FastAPI, config: ServiceConfig, source: Source) -> None:
    if config.workers > 1:
        reason = "a page's requests must all reach one process: use one worker, or run `turnwise console` beside them"
        raise source.error(("console",), value=True, reason=reason)
    try:
        console = importlib.import_module("turnwise.console")
    except ModuleNotFoundError as error:
        reason = f"there is no module {error.name}: pip install 'turnwise[console]'"
        raise source.error(("console",), value=True, reason=reason) from None
    console.mount(app, app.state.service)
