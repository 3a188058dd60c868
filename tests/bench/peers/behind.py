"""Where others are ahead of turnwise, by the numbers of the page."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peers.bench import Table, megabytes, ms
from peers.growth import window_of
from peers.recall import title_of

CLEARLY = 0.1
"""By how much somebody has to be better, as a part of turnwise's number."""


@dataclass(frozen=True, slots=True)
class Measure:
    title: str
    values: Mapping[str, float]
    """Of each peer, by its name."""
    show: Callable[[float], str]
    most_is_best: bool = False

    def ahead_of(self, name: str) -> list[str]:
        """Return who is clearly better than a peer, the best first, each with its number."""
        own_value, sign = self.values[name], -1 if self.most_is_best else 1
        peer_values = {peer: value for peer, value in self.values.items() if not peer.startswith("turnwise")}
        better = [
            peer for peer, value in peer_values.items() if sign * (own_value - value) > CLEARLY * max(own_value, value)
        ]
        better.sort(key=lambda peer: sign * peer_values[peer])
        return [f"{peer} {self.show(peer_values[peer])}" for peer in better]


def measures(results: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield the measures of the questions that were asked."""

    def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in samples.items() if values}

    if growth := results.get("growth"):
        turns, window = growth["turns"], window_of(growth)
        first = {name: values[:window] for name, values in growth["taken"].items()}
        last = {
            name: values[turns - window : turns] for name, values in growth["taken"].items() if len(values) >= turns
        }
        yield Measure(f"a turn, of the first {window}", medians(first), ms)
        yield Measure(f"a turn, of the last {window}", medians(last), ms)
        bytes_of_turn = {name: sizes[-1] / len(growth["taken"][name]) for name, sizes in growth["stored"].items()}
        yield Measure("stored for a turn", bytes_of_turn, lambda count: f"{count:,.0f} bytes")
    for count, durations in results.get("many", {}).get("taken", {}).items():
        yield Measure(f"a turn, of {int(count):,} at once", medians(durations), ms)
    if stopping := results.get("stopping"):
        yield Measure("a stop", medians(stopping["taken"]), ms)
    if resident := results.get("resident"):
        adds = {name: (of["after"] - of["before"]) / (of["count"] - 1) for name, of in resident.items()}
        yield Measure("memory with one conversation", {name: of["before"] for name, of in resident.items()}, megabytes)
        yield Measure("memory that a conversation adds", adds, lambda count: f"{count / 1000:,.0f} KB")
    if teams := results.get("teams"):
        yield Measure("a turn with a second agent", medians(teams["taken"]), ms)
    if timers := results.get("timers"):
        yield Measure("a timer, to its beginning", medians(timers["began"]), ms)
        yield Measure("a timer, to its stored answer", medians(timers["stored"]), ms)
    if starting := results.get("starting"):
        yield Measure("a program's first answer", medians(starting["taken"]), ms)
    if recall := results.get("recall"):
        for kind in next(iter(recall["shares"].values())):
            shares = {name: statistics.fmean(of[kind]) for name, of in recall["shares"].items()}
            yield Measure(f"recall at 10: {title_of(kind)}", shares, lambda share: f"{share:.2f}", most_is_best=True)
        yield Measure("to save a text", medians(recall["saved"]), ms)
        yield Measure("to find", medians(recall["taken"]), ms)


def table(results: Mapping[str, Any]) -> Table:
    """Return a row for each number of turnwise that somebody else's is clearly better than."""
    rows = [("", "", "turnwise", "ahead of it")]
    for measure in measures(results):
        for name, value in measure.values.items():
            if name.startswith("turnwise") and (ahead := measure.ahead_of(name)):
                rows.append((measure.title, name, measure.show(value), ", ".join(ahead)))
    return rows
