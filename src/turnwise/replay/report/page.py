"""Writes the report of a replay: one HTML file that opens without a server and without a network."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from turnwise.replay.conditions import notes
from turnwise.replay.records import TurnReplay
from turnwise.replay.report.overview import Overview
from turnwise.replay.statistics import LONG_BLOCKS, Group, Summary, difference
from turnwise.replay.writing import row_of

MAX_CHARS = 20_000
"""How much of a text the report shows."""

_PLACE = "/*DATA*/null"


def write_report(
    path: Path,
    summary: Summary,
    turns: Sequence[TurnReplay],
    *,
    failed: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    overview: Overview | None = None,
) -> None:
    """Write the report, in place of a file that is there.

    Args:
        turns: those to show side by side, the most different first.
        failed: the comparisons because of which the replay has failed.
        settings: what the replay was made with.
        overview: of all turns; of those that are shown, if it is omitted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report_html(summary, turns, failed=failed, settings=settings, overview=overview), encoding="utf-8")


def report_html(
    summary: Summary,
    turns: Sequence[TurnReplay],
    *,
    failed: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    overview: Overview | None = None,
) -> str:
    """Return the report as HTML. Texts of users and models are data in it, and never markup."""
    if overview is None:
        overview = Overview()
        for turn in turns:
            overview.add(turn)
    data = {
        "madeAt": time.time(),
        "overview": overview.encode(),
        "longBlocks": LONG_BLOCKS,
        "turns": summary.turns,
        "conversations": summary.conversations,
        "inexact": summary.inexact,
        "hasFloor": summary.has_floor,
        "failed": list(failed),
        "notes": notes(summary),
        "settings": settings,
        "all": _group(summary.all),
        "groups": list(map(_group, summary.groups)),
        "shown": [{**_cut(row_of(turn)), "weight": difference(turn)[0]} for turn in turns],
    }
    text = json.dumps(data, ensure_ascii=False, default=str).replace("<", "\\u003c")
    text = text.replace("\N{LINE SEPARATOR}", "\\u2028").replace("\N{PARAGRAPH SEPARATOR}", "\\u2029")
    template = resources.files("turnwise.replay.report").joinpath("report.html").read_text(encoding="utf-8")
    return template.replace(_PLACE, text)


def _group(group: Group) -> dict[str, Any]:
    return {**asdict(group), "metrics": [asdict(metric) for metric in group.metrics.values()]}


def _cut(value: Any) -> Any:
    """Return JSON whose texts are not too long to be shown."""
    if isinstance(value, str):
        return value if len(value) <= MAX_CHARS else f"{value[:MAX_CHARS]} … ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: _cut(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_cut, value))
    return value
