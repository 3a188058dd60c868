"""`Usage`: tokens, calls, time and cost of runs.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

from dataclasses import dataclass

from turnwise.memory.values.records import Record


@dataclass(frozen=True, kw_only=True)
class Usage(Record):
    """Usage in the provider's tokens, calls, seconds and money. `+` adds two usages, `-` gives the difference."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of `input_tokens` that the provider had cached."""
    reasoning_tokens: int = 0
    """The part of `output_tokens` that the model spent on reasoning."""
    calls: int = 0
    """Of the model."""
    tool_calls: int = 0
    seconds: float = 0.0
    """Time in which runs were running, without the time queued or waiting for a person."""
    cost: float = 0.0
    """Cost by the prices in `SessionConfig`, in their currency."""
    counted_tokens: int = 0
    """The part of `input_tokens` and `output_tokens` that no provider reported and turnwise counted itself: of answers
    that were stopped or broke off, and of servers that report no usage."""

    def __add__(self, other: "Usage") -> "Usage":
        # Spelt out for speed: every run adds and subtracts a few times.
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            calls=self.calls + other.calls,
            tool_calls=self.tool_calls + other.tool_calls,
            seconds=self.seconds + other.seconds,
            cost=self.cost + other.cost,
            counted_tokens=self.counted_tokens + other.counted_tokens,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cached_tokens=self.cached_tokens - other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            calls=self.calls - other.calls,
            tool_calls=self.tool_calls - other.tool_calls,
            seconds=self.seconds - other.seconds,
            cost=self.cost - other.cost,
            counted_tokens=self.counted_tokens - other.counted_tokens,
        )


def plain(usage: Usage) -> dict[str, int | float]:
    """Return the numbers of a usage that are not 0, by name, from which `Usage` makes it again."""
    return {name: value for name, value in vars(usage).items() if value}


def unreported(reported: Usage, counted: tuple[int, int], *, is_whole: bool) -> Usage:
    """Return the tokens of a model call that its provider has not reported, by a count of request and answer.

    Args:
        is_whole: whether the provider could report all tokens; then a report of any tokens is used unchanged.
    """
    if is_whole and (reported.input_tokens or reported.output_tokens):
        return Usage()
    input_tokens, output_tokens = counted
    input_tokens = 0 if reported.input_tokens else input_tokens
    output_tokens = max(0, output_tokens - reported.output_tokens)
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens, counted_tokens=input_tokens + output_tokens)
