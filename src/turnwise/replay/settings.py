"""What a replay was made with: engines, prices, seeds, selection. It is kept beside what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.named_engines import NamedEngines
from turnwise.actors.session.window.compaction_tasks import frame_of
from turnwise.replay.replaying import Variant, Work
from turnwise.replay.selecting import Selection

_NAMED = ("temperature", "base_url", "api", "max_steps")
"""Settings of engines that are kept where an engine has them. None of them is a key."""


def settings_of(work: Work, select: Selection, *, seed: int) -> dict[str, Any]:
    """Return the settings of a replay as JSON. Keys of providers, and headers, are not among them."""
    prices = {model: _plain(price) for model, price in (work.config.prices or {}).items()}
    return {
        "variant": _variant(work.variant),
        "floor": None if work.floor is None else _variant(work.floor),
        "tools": work.tools.otherwise if isinstance(work.tools.otherwise, str) else "a function",
        "graders": [grader.name for grader in work.comparing.graders],
        "prices": prices,
        "seed": seed,
        "select": _plain(asdict(select)),
    }


def _variant(variant: Variant) -> dict[str, Any]:
    builder = variant.engine
    engines = builder.engines if isinstance(builder, NamedEngines) else {"": builder}
    return {
        "engines": {name: _engine(engine) for name, engine in engines.items()},
        "overflow": None if variant.overflow is None else type(variant.overflow).__name__,
        "memories": None if variant.memory is None else [type(memory).__name__ for memory in variant.memory.memories],
        "forward": variant.forward,
    }


def _engine(engine: EngineBuilder) -> dict[str, Any]:
    frame = frame_of(engine)
    settings = {name: _without_query(getattr(engine, name, None)) for name in _NAMED}
    own = {"model": frame.model, "system": frame.system, "max_output_tokens": frame.max_output_tokens, **settings}
    tools = [str(tool.get("function", tool).get("name", "")) for tool in frame.tools]
    return {"class": type(engine).__name__, "tools": tools, **{name: value for name, value in own.items() if value}}


def _without_query(value: Any) -> Any:
    """Return a setting; of a URL, without user and query, which may have a key."""
    if not isinstance(value, str) or "://" not in value:
        return value
    scheme, _, rest = value.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(part) for name, part in asdict(value).items() if part is not None}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
