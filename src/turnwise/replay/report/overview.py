"""`Overview`: what the head of a report says of all turns: their models, their time, and what the replay has spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.memory.conversation.usage import Usage
from turnwise.replay.records import Answer, TurnReplay

MOST_MODELS = 100
"""How many models are counted by name for each side; further ones count as `other`."""

UNKNOWN_MODEL = ""
"""Of answers that name neither model nor engine."""

SIDES = ("recorded", "answer", "floor")


@dataclass
class Overview:
    """Counts records of turns. Its size does not grow with them."""

    models: dict[str, Counter[str]] = field(default_factory=lambda: {side: Counter() for side in SIDES})
    """How many answers each model has given, for the recorded answers, the new ones, and those of the floor. If a
    record names no model, the name of its engine stands for it."""
    first_at: float | None = None
    """When the first of the turns was begun."""
    last_at: float | None = None
    cost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SIDES, 0.0))
    """What all answers of a side have cost, also those that failed or were stopped."""
    unpriced: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    """How many answers of a side have an unknown cost, or tokens and no cost."""
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))

    def add(self, replay: TurnReplay) -> None:
        """Count the record of a turn."""
        self._span(replay.created_at, replay.created_at)
        for side, answer in self._answers(replay):
            usage: Usage = answer.usage
            tokens = usage.input_tokens + usage.output_tokens
            name = answer.model or (replay.engine if side == "recorded" else None)
            self._count(side, name or UNKNOWN_MODEL, 1)
            self.cost[side] += usage.cost or 0.0
            self.unpriced[side] += "cost" in answer.unknown or (bool(tokens) and not usage.cost)
            self.tokens[side] += tokens

    def merge(self, other: Overview) -> None:
        """Add what another one has counted."""
        if other.first_at is not None and other.last_at is not None:
            self._span(other.first_at, other.last_at)
        for side in SIDES:
            for model, count in other.models[side].items():
                self._count(side, model, count)
            self.cost[side] += other.cost[side]
            self.unpriced[side] += other.unpriced[side]
            self.tokens[side] += other.tokens[side]

    def encode(self) -> dict[str, Any]:
        """Return what was counted as JSON; `decode` reads it."""
        return {**vars(self), "models": {side: dict(counts) for side, counts in self.models.items()}}

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Overview:
        """Return what `encode` made JSON of."""
        return cls(**{**value, "models": {side: Counter(counts) for side, counts in value["models"].items()}})

    def _answers(self, replay: TurnReplay) -> Iterator[tuple[str, Answer]]:
        yield "recorded", replay.recorded
        yield "answer", replay.answer
        if replay.floor is not None:
            yield "floor", replay.floor

    def _span(self, first: float, last: float) -> None:
        self.first_at = first if self.first_at is None else min(first, self.first_at)
        self.last_at = last if self.last_at is None else max(last, self.last_at)

    def _count(self, side: str, model: str, count: int) -> None:
        counts = self.models[side]
        counts[model if model in counts or len(counts) < MOST_MODELS else "other"] += count
