"""Compares two runs of the bench: which goals have another verdict?

    make bench ARGS="--json first.json"
    make bench ARGS="--json second.json"
    python tests/bench/verdicts.py first.json second.json

Prints each goal that was met once and missed once, or that only one run has, and exits with 1 if there are any.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict


class Goal(TypedDict):
    """A measurement with a goal, and whether that was met."""

    name: str
    value: float
    unit: str
    bound: str
    goal: float
    met: bool


def different(first: Sequence[Goal], second: Sequence[Goal]) -> list[str]:
    """Return a line for each goal whose verdict is not the same in both runs."""
    of_first, of_second = ({goal["name"]: goal for goal in run} for run in (first, second))
    names = dict.fromkeys([*of_first, *of_second])
    return [
        f"{name}: {verdict(of_first.get(name))}, then {verdict(of_second.get(name))}"
        for name in names
        if name not in of_first or name not in of_second or of_first[name]["met"] != of_second[name]["met"]
    ]


def verdict(goal: Goal | None) -> str:
    if goal is None:
        return "not measured"
    of = f"of at {goal['bound']} {goal['goal']:,g}{goal['unit']}"
    return f"{'met' if goal['met'] else 'missed'} with {goal['value']:.3g} {of}"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print("usage: verdicts.py FIRST SECOND, two files that `bench.py --json` wrote", file=sys.stderr)
        return 2
    runs: list[Mapping[str, Any]] = [json.loads(Path(path).read_text(encoding="utf-8")) for path in arguments]
    lines = different(runs[0]["goals"], runs[1]["goals"])
    print("\n".join(lines) or f"All {len(runs[0]['goals'])} goals have the same verdict in both runs.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
