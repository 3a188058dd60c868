"""The report of a chaos run: what was done and which invariants were violated."""

from __future__ import annotations

import platform
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from turnwise.testing.audit import Audit


def versions() -> dict[str, str]:
    """Return the versions of what took part."""
    packages = {name: version(name) for name in ("turnwise", "ray", "sqlalchemy")}
    return {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, **packages}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A chaos run: what was injected, what callers were told, and whether the store still has it."""

    title: str
    seed: int
    seconds: float
    """How long faults were injected."""
    settling_s: float
    """How long it took afterwards until nothing was under way."""
    faults: Mapping[str, int]
    """By kind, and where they were injected."""
    refused: Mapping[str, int]
    """How often callers were told no, or nothing, by the name of the error."""
    audit: Audit
    unsettled: tuple[str, ...] = ()
    """Who did not come to an end: callers, runs."""
    versions: Mapping[str, str] = field(default_factory=versions)

    @property
    def total(self) -> int:
        """How many faults there were."""
        return sum(self.faults.values())

    def check(self) -> None:
        """Raise unless all that was acknowledged is there and all has ended.

        Raises:
            AssertionError: says what is not, and the seed.
        """
        broken = [*self.unsettled, *map(str, self.audit.violations)]
        if broken:
            raise AssertionError("\n".join([f"seed {self.seed}, {self.total} faults:", *broken]))

    def markdown(self) -> str:
        """Return it as a page."""
        held = "all holds" if not self.audit.violations and not self.unsettled else "VIOLATIONS"
        day = time.strftime("%Y-%m-%d", time.gmtime())
        lines = [
            f"# {self.title}",
            "",
            f"{day}, seed {self.seed}: {self.total} faults in {self.seconds:.0f} s; {held}.",
            "",
            f"All had ended {self.settling_s:.1f} s after the last.",
            "",
            f"With {', '.join(f'{name} {number}' for name, number in self.versions.items())}.",
            "",
            *_table("fault, and where", self.faults),
            *_table("audited", self.audit.counts),
            *_table("callers were told", self.refused),
            *(f"- {each}" for each in [*self.unsettled, *map(str, self.audit.violations)]),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def write(self, path: Path | str) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.markdown(), encoding="utf-8")


def _table(head: str, rows: Mapping[str, int]) -> list[str]:
    counted = Counter(rows).most_common()
    return [f"| {head} | times |", "|---|---|", *(f"| {name} | {count} |" for name, count in counted), ""]
