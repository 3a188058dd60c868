"""Tools: what a model may call."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.memory.frozen import FrozenDict


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What the model is told of a tool."""

    name: str
    description: str
    parameters: FrozenDict = field(default_factory=FrozenDict)
    """A JSON schema of an object."""
