"""The goals of `make bench` are kept by name, two runs of it are compared, and a cancel is taken apart."""

import json
from pathlib import Path

import pytest

import verdicts
from cancelling import PARTS, means_text, parts_of
from harness import Samples, Table
from packing import ends


def a_run(path: Path, ratio: float, mb: float) -> Path:
    """Write the goals of a run, as the bench does."""
    table = Table()
    table.line("bare call", Samples([0.001]))
    table.judge("  a turn, to that", ratio, 2.5)
    table.line("bare actor")
    table.judge("  a turn, to that", 2.0, 2.5)
    table.judge("events", mb, 100.0, " events/s", bound="least")
    path.write_text(json.dumps({"goals": table.goals}), encoding="utf-8")
    return path


def test_the_same_verdicts_are_the_same_whatever_the_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = a_run(tmp_path / "1", 2.0, 120.0), a_run(tmp_path / "2", 2.4, 100.0)
    capsys.readouterr()
    assert verdicts.main([str(first), str(second)]) == 0
    assert capsys.readouterr().out == "All 3 goals have the same verdict in both runs.\n"


def test_another_verdict_is_told_with_both_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = a_run(tmp_path / "1", 2.0, 120.0), a_run(tmp_path / "2", 2.6, 99.0)
    capsys.readouterr()
    assert verdicts.main([str(first), str(second)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "bare call: a turn, to that: met with 2 of at most 2.5x, then missed with 2.6 of at most 2.5x",
        "events: met with 120 of at least 100 events/s, then missed with 99 of at least 100 events/s",
    ]


def test_a_goal_that_one_run_lacks_is_different(tmp_path: Path) -> None:
    goals = json.loads(a_run(tmp_path / "1", 2.6, 120.0).read_text(encoding="utf-8"))["goals"]
    (line,) = verdicts.different(goals, goals[1:])
    assert line == "bare call: a turn, to that: missed with 2.6 of at most 2.5x, then not measured"


def test_two_files_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdicts.main(["one"]) == 2
    assert "two files" in capsys.readouterr().err


def test_the_parts_of_a_cancel_are_all_its_time() -> None:
    stamps = [
        ("cancel", 0.5, 0.9),  # another, before
        ("cancel", 10.001, 10.009),
        ("gc", 10.0015, 10.002),
        ("commit", 10.003, 10.008),
        ("SQLite", 10.004, 10.006),
        ("gc", 11.0, 11.5),
    ]
    parts = parts_of(10.0, 10.012, stamps)
    assert sum(parts[name] for name in PARTS) == pytest.approx(0.012)
    assert parts == pytest.approx(
        dict(zip((*PARTS, "garbage"), (0.001, 0.003, 0.003, 0.002, 0.003, 0.0005), strict=True))
    )
    assert means_text([parts, parts]).startswith(
        "to the process 1, in it 3, to SQLite 3, SQLite 2, to the waiter 3, garbage 0.5"
    )


def test_one_part_that_met_other_work_hardly_moves_the_line_through_all() -> None:
    assert ends([1.0, 2.0, 3.0, 4.0]) == (1.0, 4.0)
    assert ends([5.0] * 9 + [1.0]) == (5.0, 5.0)
    assert ends([1.0, *[5.0] * 9]) == (5.0, 5.0)
    first, last = ends([10.0 - index for index in range(10)])
    assert last / first == pytest.approx(0.1), "a rate that falls all the way is seen"
