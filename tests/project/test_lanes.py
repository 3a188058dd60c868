"""The lanes of `make test` run each test once."""

import os
import subprocess
import sys
from pathlib import Path, PurePath

from lanes import LONG, MORE, TAKEN, TESTS, files_of, name_of, searches, take


def test_a_lane_runs_the_files_that_no_other_has_taken_in_the_order_in_which_it_gets_them(tmp_path: Path) -> None:
    names = ["conversation/test_checked_settings.py", "console/test_text.py", "conversation/test_growing_pauses.py"]
    first, second, third = (TESTS / name for name in names)
    assert take(second, str(tmp_path)) and not take(second, str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "not ray", *map(str, (third, second, first))],
        env={**os.environ, TAKEN: str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ran = [line.split()[0] for line in run.stdout.splitlines() if line.startswith("tests/")]
    assert run.returncode == 0 and ran == [f"tests/{names[2]}", f"tests/{names[0]}"], run.stdout
    assert not take(first, str(tmp_path)) and not take(third, str(tmp_path))


def test_every_file_is_in_a_lane_of_one_of_the_two_commands() -> None:
    files = {target: [*map(name_of, files_of("others", target))] for target in ("", "--more")}
    assert sorted(files[""] + files["--more"]) == sorted(name_of(file) for file in TESTS.rglob("test_*.py"))
    assert files[""][: len(LONG)] == LONG and files["--more"][0] == MORE[0]
    for target, names in files.items():
        assert {*map(name_of, files_of("ray", target))} < set(names)
    for pattern in MORE:
        assert any(PurePath(name).match(pattern) for name in files["--more"]), f"{pattern} names no file"


def test_the_newest_python_runs_what_searches_nothing_without_a_ray_and_one_file_with_one() -> None:
    assert set(files_of("others", "--newest")) == {file for file in files_of("others") if not searches(file)}
    (file,) = files_of("ray", "--newest")
    assert file.exists()


def run_lanes(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, TESTS / "lanes.py", *map(str, arguments)],
        env={**os.environ, "CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # in CI, pytest cuts no message
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_failed_is_named_once_more_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_bad():\n    assert 1 == 2\n\n\ndef test_good():\n    pass\n")
    run = run_lanes(file, "-q", "--durations=1", "--rootdir", tmp_path)
    last = run.stdout.splitlines()[-1]
    assert run.returncode == 1
    assert "FAILED" in last
    assert "test_bad" in last
    assert "assert 1 == 2" in last


def test_a_lane_that_is_killed_says_where(tmp_path: Path) -> None:
    file = tmp_path / "test_deadly.py"
    file.write_text("import os, signal\n\n\ndef test_deadly():\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    run = run_lanes(file, "--rootdir", tmp_path)
    last = run.stdout.splitlines()[-1]
    assert run.returncode != 0
    assert "killed by signal 9" in last
    assert "test_deadly.py" in last
