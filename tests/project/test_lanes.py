"""The lanes of `make test` run each test once."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from lanes import KINDS, LONGEST, TESTS, files_of, take


def test_lanes_share_the_tests_by_files(tmp_path: Path) -> None:
    tests = [SimpleNamespace(path=TESTS / "room" / f"test_{number // 3}.py", number=number) for number in range(15)]
    lanes = [take(tests, str(tmp_path)) for _ in range(3)]
    ran: list[list[int]] = [[], [], []]
    while turns := [(index, test) for index, lane in enumerate(lanes) if (test := next(lane, None))]:
        for index, test in turns:
            ran[index].append(test.number)
    assert all(ran) and sorted(number for numbers in ran for number in numbers) == list(range(15))
    for numbers in ran:
        assert {number // 3 for number in numbers} == {number // 3 for number in numbers[::3]}, "a file is run whole"
    assert not list(take(tests, str(tmp_path)))


def test_every_file_is_in_a_lane_and_the_longest_come_first() -> None:
    names = {kind: [file.relative_to(TESTS).as_posix() for file in files_of(kind)] for kind in KINDS}
    assert (
        set(names["ray"])
        < set(names["others"])
        == {file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py")}
    )
    assert names["others"][: len(LONGEST)] == LONGEST


def test_what_failed_is_named_once_more_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_bad():\n    assert 1 == 2\n\n\ndef test_good():\n    pass\n")
    run = subprocess.run(
        [sys.executable, TESTS / "lanes.py", file, "-q", "--durations=1", "--rootdir", tmp_path],
        env={**os.environ, "CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # in CI, pytest cuts no message
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = run.stdout.splitlines()[-1]
    assert run.returncode == 1
    assert "FAILED" in last
    assert "test_bad" in last
    assert "assert 1 == 2" in last
