"""Adapts an engine to `TextModel`, which memories use to get a text, or JSON of a schema, from a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from turnwise.actors.inference.completion import CompletionContext, ask, within
from turnwise.actors.inference.engine import EngineBuilder, SessionView, Structured
from turnwise.memory.conversation.blocks import Block, answer_text
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.longterm.model_usage import bill_model_usage

TIMEOUT_S, GRACE_S = 60.0, 2.0
"""How long an answer may take, and how long an engine may take to stop then, in seconds."""


class EngineModel:
    """An engine as a `TextModel`, outside of any session. `usage` is the sum over all answers.

    The caller of the memory that asks is told the usage of each answer: see `billed_to`.
    """

    def __init__(self, builder: EngineBuilder, *, timeout_s: float = TIMEOUT_S) -> None:
        self._builder = builder
        self._timeout_s = timeout_s
        self.usage = Usage()

    @property
    def is_typed(self) -> bool:
        """Whether the engine answers in a given schema: whether it is `Structured`."""
        return isinstance(self._builder, Structured)

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        """See `TextModel`. An engine that is not `Structured` gets no schema, so the request must describe the format.

        Raises:
            EngineError, TimeoutError: there is no answer.
        """
        session = SessionView(session_id="memory", user_id="memory", agent=None, metadata={})
        context = CompletionContext(session, self._bill)
        completion = partial(ask, self._builder, request, context, asyncio.to_thread, GRACE_S, schema=schema)
        return answer_text(await within(completion, self._timeout_s, GRACE_S))

    def _bill(self, usage: Usage, model: str | None) -> None:
        self.usage += usage
        bill_model_usage(usage, model)
