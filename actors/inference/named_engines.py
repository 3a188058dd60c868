"""`NamedEngines`: the engines of a manager by name, of which each session uses one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.actors.inference.engine import EngineBuilder, InferenceRunner, SessionView
from turnwise.actors.inference.shadow import answering
from turnwise.actors.inference.split import Split
from turnwise.errors import ConfigError, InvalidIdError, shown
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.values.frozen_json import FrozenDict
from turnwise.memory.values.ids import check_id


@dataclass(frozen=True)
class NamedEngines:
    """Engines by name. The first one is that of sessions without a name."""

    engines: Mapping[str, EngineBuilder]

    def build(self, session: SessionView) -> InferenceRunner:
        """See `EngineBuilder`."""
        return first_engine(self).build(session)


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
        ConfigError: it is no engine and no such mapping, or it has a `Split` that names no engine beside it.
    """
    if not isinstance(engine, Mapping):
        if isinstance(engine, Split):
            reason = "give it a name beside the engines that it names: engine={'main': Split(...), 'a': ...}"
            raise ConfigError("engine", "Split", reason)
        return _checked("engine", engine)
    if not engine:
        raise ConfigError("engine", engine, "name at least one engine")
    for name, builder in engine.items():
        try:
            check_id("engine", name)
        except InvalidIdError as error:
            raise ConfigError("engine", name, str(error)) from None
        _checked(f"engine[{name!r}]", builder)
        for part in builder.shares if isinstance(builder, Split) else ():
            if part not in engine or isinstance(engine[part], Split):
                reason = f"a Split names an engine beside it, which is no Split: add {part!r} to the engines"
                raise ConfigError(f"engine[{name!r}]", part, reason)
    return NamedEngines(dict(engine))


def _checked(field: str, engine: Any) -> EngineBuilder:
    if not isinstance(engine, EngineBuilder) or isinstance(engine, type):
        such = f"OpenAIEngine({shown(engine)}) or EchoEngine()" if isinstance(engine, str) else "EchoEngine()"
        raise ConfigError(field, type(engine).__name__, f"pass an object with build(session), such as {such}")
    return engine


def engines_of(builder: EngineBuilder) -> list[EngineBuilder]:
    """Return the engines that answer a manager's runs: no `Split`, and no candidate of a `Shadow`."""
    engines = builder.engines.values() if isinstance(builder, NamedEngines) else [builder]
    return [answering(engine) for engine in engines if not isinstance(engine, Split)]


def first_engine(builder: EngineBuilder) -> EngineBuilder:
    """Return the engine of sessions without a name; if that is a `Split`, the first one that it names."""
    engine = engine_named(builder, None)
    return answering(engine_named(builder, next(iter(engine.shares))) if isinstance(engine, Split) else engine)


def chosen_name(
    builder: EngineBuilder, name: str | None, session: SessionKey, labels: Mapping[str, str] = FrozenDict()
) -> str | None:
    """Return the name of the engine of a run, whose session has an engine of this name: a `Split` chooses one."""
    engine = engine_named(builder, name)
    return engine.choose(session, labels) if isinstance(engine, Split) else name


def engine_named(builder: EngineBuilder, name: str | None) -> EngineBuilder:
    """Return the engine with this name, or a `MissingEngine`; the first one for None.

    It may be a `Split` or a `Shadow`: see `chosen_name` and `answering`.
    """
    if name is None:
        return next(iter(builder.engines.values())) if isinstance(builder, NamedEngines) else builder
    engines = builder.engines if isinstance(builder, NamedEngines) else {}
    return engines.get(name) or MissingEngine(name, tuple(engines))
