"""`/openai/v1/models`: the models that requests may name, and the engine that each stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.services.open_for_run import check_start
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.shared.run_options import RunOptions
from turnwise.actors.inference.engine import Framed, RequestFrame
from turnwise.errors import SessionInUseError, TurnwiseError
from turnwise.http.openai.errors import OpenAIError, OpenAIRoute
from turnwise.http.service import Caller, RequestCaller
from turnwise.memory.conversation.blocks import Block
from turnwise.memory.conversation.runs import RunRecord

router = APIRouter(prefix="/openai/v1/models", tags=["OpenAI models"], route_class=OpenAIRoute)

REQUESTED = "openai.model"
"""The name of a run's label with the model that its request named."""

DEFAULT = "default"
"""The name of the model of an engine that says none."""


@dataclass(frozen=True)
class Chosen:
    """The engine and the model that a request names."""

    engine: str | None
    """The name of the manager's engine; None for its first."""
    model: str | None
    """The model of the run; None for the engine's own."""


def models_of(caller: Caller) -> dict[str, Chosen]:
    """Return the models that requests may name.

    They are the names of the manager's engines, the engines' models, then those of `HttpSettings.models`, which the
    first engine is asked for.
    """
    engines = caller.manager.engines
    models = {name: Chosen(name, None) for name in engines if name is not None}
    for name, engine in engines.items():
        model = engine.frame().model if isinstance(engine, Framed) else None
        if model or name is None:
            models.setdefault(model or DEFAULT, Chosen(name, None))
    for model in caller.service.settings.models:
        models.setdefault(model, Chosen(None, model))
    return models


def chosen(caller: Caller, model: str) -> Chosen:
    """Return what a request asks for that names this model.

    Raises:
        OpenAIError: there is no such model.
    """
    models = models_of(caller)
    if model not in models:
        names = ", ".join(map(repr, models))
        message = f"The model '{model:.200}' does not exist; this service has {names}."
        raise OpenAIError(404, message, param="model", code="model_not_found")
    return models[model]


def model_of(caller: Caller, run: RunRecord) -> str:
    """Return the model that a request named, or that its run has."""
    frame = frame_of(caller.manager.engines.get(run.engine))
    return run.labels.get(REQUESTED) or run.model or (frame and frame.model) or run.engine or DEFAULT


def frame_of(engine: object) -> RequestFrame | None:
    """Return the fixed part of an engine's requests, if it says one."""
    return engine.frame() if isinstance(engine, Framed) else None


async def run_on(
    caller: Caller, session: AsyncSession, engine: str | None, blocks: Sequence[Block], options: RunOptions
) -> AsyncExecutionHandle:
    """Start a run of a session on this engine, which its later runs have too. If it is refused, nothing is changed.

    Raises:
        TurnwiseError: as `AsyncSession.run`.
    """
    if len(caller.manager.engines) == 1:
        return await session.run(*blocks, **options)
    info = await session.info()
    if (had := info.session.engine) == engine:
        return await session.run(*blocks, **options)
    if started := await check_start(session, blocks, options):
        return await session.execution(started)
    if info.active_run_id is not None:
        raise SessionInUseError(session.session_id, info.active_run_id)
    await session.use(engine)
    try:
        return await session.run(*blocks, **options)
    except TurnwiseError:  # somebody else came first
        await session.use(had)
        raise


@router.get("")
async def list_models(caller: RequestCaller) -> dict[str, Any]:
    """List the models that requests may name."""
    return {"object": "list", "data": [_model(model) for model in models_of(caller)]}


@router.get("/{model:path}")
async def retrieve_model(model: str, caller: RequestCaller) -> dict[str, Any]:
    """Return a model that requests may name."""
    chosen(caller, model)
    return _model(model)


def _model(id: str) -> dict[str, Any]:
    return {"id": id, "object": "model", "created": 0, "owned_by": "turnwise"}
