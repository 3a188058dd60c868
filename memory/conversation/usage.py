"""What a run used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was spent, in the provider's tokens, in calls, time and money. `+` adds up, `-` gives what came since."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Those of `input_tokens` that the provider had cached."""
    reasoning_tokens: int = 0
    """Those of `output_tokens` that the model thought with."""
    calls: int = 0
    """Of the model."""
    tool_calls: int = 0
    seconds: float = 0.0
    """In which a run was running: not those in which it was queued or waited for a person."""
    cost: float = 0.0
    """By the prices in `SessionConfig`, in their currency."""

    def __add__(self, other: Usage) -> Usage:
        # Spelt out, since every run adds and takes away a few times.
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            calls=self.calls + other.calls,
            tool_calls=self.tool_calls + other.tool_calls,
            seconds=self.seconds + other.seconds,
            cost=self.cost + other.cost,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cached_tokens=self.cached_tokens - other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            calls=self.calls - other.calls,
            tool_calls=self.tool_calls - other.tool_calls,
            seconds=self.seconds - other.seconds,
            cost=self.cost - other.cost,
        )
