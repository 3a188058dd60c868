"""Draws the measurements, in SVG."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.growth import AT_ONCE
from peers.recall import kinds_of, title_of


def draw(results: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Draw a picture for each question that has one; return their paths, as a page of docs/ names them."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "font.size": 9, "figure.facecolor": "white"})
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    drawn = {}
    for question, paint in (("growth", growth), ("many", many), ("stopping", stopping), ("recall", recall)):
        if question in results:
            figure = paint(pyplot, results[question])
            figure.tight_layout()
            figure.savefig(folder / f"bench-{question}.svg", metadata={"Date": None})
            drawn[question] = f"images/bench-{question}.svg"
    return drawn


def growth(pyplot: Any, result: Mapping[str, Any]) -> Any:
    figure, (times, bytes_) = pyplot.subplots(1, 2, figsize=(9, 3.4))
    for name, durations in result["taken"].items():
        ends = range(AT_ONCE, len(durations) + 1, AT_ONCE)
        times.plot(ends, [statistics.median(durations[end - AT_ONCE : end]) * 1000 for end in ends], label=name)
        bytes_.plot(ends, [count / 1e6 for count in result["stored"][name]], label=name)
    for axes, label in ((times, "ms for a turn"), (bytes_, "MB stored")):
        axes.set(xlabel="turn", ylabel=label, yscale="log")
        axes.grid(alpha=0.3)
    times.legend(fontsize=7)
    return figure


def recall(pyplot: Any, result: Mapping[str, Any]) -> Any:
    shares, kinds = result["shares"], kinds_of(result)
    figure, axes = pyplot.subplots(figsize=(max(7.0, 1.4 * len(kinds)), 3.4))
    width = 0.8 / len(shares)
    for index, (name, of_kinds) in enumerate(shares.items()):
        places = [place + index * width for place in range(len(kinds))]
        axes.bar(places, [statistics.fmean(of_kinds[kind]) for kind in kinds], width, label=name)
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(kinds))], [title_of(kind) for kind in kinds], fontsize=7
    )
    axes.set(ylabel="recall at 10", ylim=(0, 1))
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=7)
    return figure


def many(pyplot: Any, result: Mapping[str, Any]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6, 3.4))
    names = dict.fromkeys(name for durations in result["taken"].values() for name in durations)
    for name in names:
        rates = {
            int(count): 1 / statistics.median(durations[name])
            for count, durations in result["taken"].items()
            if name in durations
        }
        axes.plot([*rates], [*rates.values()], marker="o", label=name)
    axes.set(xlabel="conversations at once", ylabel="turns a second", xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure


def stopping(pyplot: Any, result: Mapping[str, Any]) -> Any:
    figure, axes = pyplot.subplots(figsize=(6, 3.0))
    axes.boxplot([[value * 1000 for value in durations] for durations in result["taken"].values()], vert=False)
    axes.set_yticks(range(1, len(result["taken"]) + 1), [*result["taken"]])
    axes.set(xlabel="ms from the stop to its outcome", xscale="log")
    axes.grid(alpha=0.3)
    return figure
