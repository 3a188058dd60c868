"""`TextModel`: the protocol of a model that answers a request with text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from turnwise.memory.conversation.blocks import AnyBlock


@runtime_checkable
class TextModel(Protocol):
    """The model that a memory calls: one request, one answer, no tools, no state between calls.

    Optional is the attribute `is_typed`: false if the answers need not fit a schema; see `is_typed`.
    """

    async def answer(self, request: Sequence[AnyBlock], *, schema: Mapping[str, Any] | None = None) -> str:
        """Return the model's answer to the request, whole.

        May raise any error of the engine. The answer is untrusted: the caller must validate it.

        Args:
            request: the instructions, then the data.
            schema: the JSON schema that the answer's JSON text should fit. None for plain text.
        """


def is_typed(model: object) -> bool:
    """Return whether the model's answers fit the schema that they are asked for: its attribute `is_typed`, or true."""
    return bool(getattr(model, "is_typed", True))
