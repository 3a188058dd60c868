"""The report of a chaos run: the injected faults, and the violated invariants."""

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
    """Return the versions of Python, SQLite and the packages."""
    packages = {name: version(name) for name in ("turnwise", "ray", "sqlalchemy")}
    return {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, **packages}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a chaos run."""

    title: str
    seed: int
    seconds: float
    """How long faults were injected, in seconds."""
    settling_s: float
    """How long calls and runs took to end afterwards, in seconds."""
    faults: Mapping[str, int]
    """The number of faults by kind and place."""
    refused: Mapping[str, int]
    """The number of failed calls by the name of the error."""
    audit: Audit
    unsettled: tuple[str, ...] = ()
    """Callers and runs that did not end."""
    versions: Mapping[str, str] = field(default_factory=versions)

    @property
    def total(self) -> int:
        """The number of faults."""
        return sum(self.faults.values())

    def check(self) -> None:
        """Raise AssertionError, with the violations and the seed, if the audit found any or something did not end."""
        broken = [*self.unsettled, *map(str, self.audit.violations)]
        if broken:
            raise AssertionError("\n".join([f"seed {self.seed}, {self.total} faults:", *broken]))

    def markdown(self) -> str:
        """Return the report as a Markdown page."""
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
            *(f"- {line}" for line in [*self.unsettled, *map(str, self.audit.violations)]),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def write(self, path: Path | str) -> None:
        """Write the Markdown page to a file."""
        Path(path).write_text(self.markdown(), encoding="utf-8")


def _table(head: str, rows: Mapping[str, int]) -> list[str]:
    counted = Counter(rows).most_common()
    return [f"| {head} | times |", "|---|---|", *(f"| {name} | {count} |" for name, count in counted), ""]
