"""A model that is asked something, and answers with text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from turnwise.memory.conversation.blocks import Block


@runtime_checkable
class TextModel(Protocol):
    """What memory asks a model through: one request, one answer, no tools, nothing kept between calls."""

    async def answer(self, request: Sequence[Block], *, schema: Mapping[str, Any] | None = None) -> str:
        """Return the model's answer to the request, whole.

        May raise whatever asking it raises. What it answers is not trusted: who asks checks it.

        Args:
            request: instructions and what they are about, in order.
            schema: a JSON schema; the answer is to be JSON text of it. None for plain text.
        """
