"""`EventFilter`: which events a reader wants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.values.frozen_json import FrozenDict


@dataclass(frozen=True)
class EventFilter:
    """Takes the events that match all of its conditions."""

    kinds: frozenset[str] | None = None
    """Only events of these kinds; None for all."""
    labels: FrozenDict = field(default_factory=FrozenDict)
    """Only events that have all of these labels."""

    def takes(self, event: Event) -> bool:
        """Return whether a reader wants the event."""
        return (self.kinds is None or event.kind in self.kinds) and has_labels(event.labels, self.labels)

    def of(self, events: Iterable[AnyEvent]) -> list[AnyEvent]:
        """Return those of the events that a reader wants."""
        return [event for event in events if self.takes(event)]


def event_filter(kinds: Collection[str] | None, labels: Mapping[str, str] | None) -> EventFilter | None:
    """Return the filter with these conditions; None if there are none."""
    if kinds is None and not labels:
        return None
    return EventFilter(None if kinds is None else frozenset(kinds), FrozenDict(labels or {}))


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether all the wanted labels are among these, with the same values."""
    return wanted.items() <= labels.items()
