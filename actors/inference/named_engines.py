"""`NamedEngines`: the engines of a manager by name, of which each session uses one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.errors import ConfigError, InvalidIdError, shown
from turnwise.memory.values.ids import check_id


@dataclass(frozen=True)
class NamedEngines:
    """Engines by name. The first one is that of sessions without a name."""

    engines: Mapping[str, EngineBuilder]

    def build(self, session: SessionView) -> InferenceRunner:
        """See `EngineBuilder`."""
        return next(iter(self.engines.values())).build(session)


@dataclass(frozen=True)
class MissingEngine:
    """Takes the place of an engine whose name the manager does not know: its runs fail with the reason."""

    name: str
    names: tuple[str, ...]

    def build(self, session: SessionView) -> InferenceRunner:
        """Raise ConfigError."""
        raise self.error(session.session_id)

    def error(self, session_id: str) -> ConfigError:
        """Return the error of a run of this session."""
        has = f"has {', '.join(map(repr, self.names))}" if self.names else "has one engine without a name"
        reason = f"session {session_id!r} uses this engine, and the manager {has}"
        return ConfigError("engine", self.name, f"{reason}: pass engine={{name: engine}}, or call use()")


def as_engine(engine: Any) -> EngineBuilder:
    """Return the engine that a manager was given; a mapping of names to engines as `NamedEngines`.

    Raises:
        ConfigError: it is no engine and no such mapping.
    """
    if not isinstance(engine, Mapping):
        return _checked("engine", engine)
    if not engine:
        raise ConfigError("engine", engine, "name at least one engine")
    for name, builder in engine.items():
        try:
            check_id("engine", name)
        except InvalidIdError as error:
            raise ConfigError("engine", name, str(error)) from None
        _checked(f"engine[{name!r}]", builder)
    return NamedEngines(dict(engine))


def _checked(field: str, engine: Any) -> EngineBuilder:
    if not isinstance(engine, EngineBuilder) or isinstance(engine, type):
        such = f"OpenAIEngine({shown(engine)}) or EchoEngine()" if isinstance(engine, str) else "EchoEngine()"
        raise ConfigError(field, type(engine).__name__, f"pass an object with build(session), such as {such}")
    return engine


def engines_of(builder: EngineBuilder) -> list[EngineBuilder]:
    """Return the engines that a manager's engine stands for."""
    return list(builder.engines.values()) if isinstance(builder, NamedEngines) else [builder]


def engine_named(builder: EngineBuilder, name: str | None) -> EngineBuilder:
    """Return the engine with this name, or a `MissingEngine`; the first one for None."""
    if name is None:
        return engines_of(builder)[0]
    engines = builder.engines if isinstance(builder, NamedEngines) else {}
    return engines.get(name) or MissingEngine(name, tuple(engines))
