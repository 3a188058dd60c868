"""A long chaos run: `make soak`. Writes its report to LAST.md beside this file.

Cases 15, 47, 63 and 65, for SOAK_SECONDS (1200) and until SOAK_FAULTS (10000) faults have been injected: until then,
the middle stage is repeated. SOAK_SEED (0) and SOAK_SESSIONS (24) can be set too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stages import STAGES, Setting, packed_on_postgres

from turnwise.testing.report import Report

MORE = 0.1
"""The share of the time that each repetition of the middle stage gets."""

LAST = Path(__file__).with_name("LAST.md")


def setting(name: str, default: float) -> int:
    return int(os.environ.get(f"SOAK_{name}", default))


def written(reports: list[Report], goal: int) -> str:
    """Return the page about all stages."""
    total = sum(report.total for report in reports)
    broken = sum(len(report.audit.violations) + len(report.unsettled) for report in reports)
    acknowledged = {
        name: sum(report.audit.counts[f"acknowledged {name}"] for report in reports)
        for name in ("prompt", "run", "end")
    }
    seconds = sum(report.seconds for report in reports)
    promises = (
        f"Callers were told of {acknowledged['prompt']:,} stored prompts, {acknowledged['run']:,} runs and "
        f"{acknowledged['end']:,} ends. Each prompt is stored once and in order, each run has one outcome, the one "
        "that was told, each history is valid for three providers with one prompt more, and memory has each turn that "
        "completed once: unless a violation below says otherwise."
    )
    method = (
        "Faults are counted where they were injected: by a killer, or in the process of a session, which writes each "
        "down before it strikes. `make soak` makes this page anew; `SOAK_SEED` draws other faults."
    )
    summary = f"{total:,} faults in {seconds / 60:.0f} minutes, {goal:,} wanted; {broken} violations."
    lines = ["# The last soak", "", summary, "", promises, "", method, ""]
    return "\n".join(lines) + "\n" + "\n".join(f"#{report.markdown()}" for report in reports)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server of PostgreSQL may enter; each pytest that starts closes its own to others."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_ten_thousand_faults_lose_and_double_nothing(folder: Path) -> None:
    goal, seconds, seed = setting("FAULTS", 10_000), setting("SECONDS", 1200), setting("SEED", 0)
    reports: list[Report] = []

    def stage(number: int) -> Setting:
        of_stage = folder / f"stage-{number}"
        of_stage.mkdir(mode=0o700)
        part = STAGES[number][1] if number < len(STAGES) else MORE
        return Setting(folder=of_stage, seed=seed + number, seconds=seconds * part, sessions=setting("SESSIONS", 24))

    stages = [run for run, _ in STAGES]
    while stages or sum(report.total for report in reports) < goal:
        run = stages.pop(0) if stages else packed_on_postgres
        reports.append(run(stage(len(reports))))
        LAST.write_text(written(reports, goal), encoding="utf-8")
    for report in reports:
        report.check()
