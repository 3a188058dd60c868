"""The lanes of `make test` run each test once."""

import os
import re
import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from lanes import (
    DAYS,
    LONG,
    MORE,
    ROTATED,
    TAKEN,
    TESTS,
    files_of,
    is_same_on_each_python,
    mark_of,
    name_of,
    take,
)


def test_a_lane_runs_the_files_that_no_other_has_taken_in_the_order_in_which_it_gets_them(tmp_path: Path) -> None:
    names = ["conversation/test_checked_settings.py", "console/test_text.py", "conversation/test_growing_pauses.py"]
    first, second, third = (TESTS / name for name in names)
    assert take(second, str(tmp_path))
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


def test_each_day_one_group_of_files_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    all_groups = {name for group in ROTATED for name in group}
    assert len(all_groups) == sum(map(len, ROTATED))
    for day, group in enumerate(ROTATED):
        monkeypatch.setattr("lanes.today", lambda day=day: day)
        assert {*map(name_of, files_of("others", "--more"))} & all_groups == set(group)


def test_every_file_is_in_a_lane_of_one_of_the_two_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanes.rests_today", lambda file: False)
    files = {target: [*map(name_of, files_of("others", target))] for target in ("", "--more")}
    assert sorted(files[""] + files["--more"]) == sorted(name_of(file) for file in TESTS.rglob("test_*.py"))
    assert files[""][: len(LONG)] == LONG and files["--more"][0] == MORE[0]
    for target, names in files.items():
        assert {*map(name_of, files_of("ray", target))} < set(names)
    for pattern in MORE:
        assert any(PurePath(name).match(pattern) for name in files["--more"]), f"{pattern} names no file"


def test_files_that_run_blocks_of_code_are_run_by_one_process(tmp_path: Path) -> None:
    docs, readme = TESTS / "project/test_docs.py", TESTS / "project/test_readme.py"
    assert take(docs, str(tmp_path)) and take(readme, str(tmp_path))
    mark_of(docs, str(tmp_path)).write_text("another process")
    assert not take(docs, str(tmp_path)) and not take(readme, str(tmp_path))


def test_the_newest_python_runs_what_may_differ_there_without_a_ray_and_one_file_with_one() -> None:
    files = {file for file in files_of("others") if not is_same_on_each_python(file)}
    assert set(files_of("others", "--newest")) == files
    assert 0 < len(files_of("others")) - len(files) < len(files) and all(
        file.parent != TESTS / "project" for file in files
    )
    for target in ("--newest", "--newest-part"):
        (file,) = files_of("ray", target)
        assert file.exists()


def test_the_parts_for_the_newest_python_are_all_of_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = list[Path]()
    for day in range(DAYS):
        monkeypatch.setattr("time.time", lambda day=day: 86400.0 * (20_000 + day))
        parts += files_of("others", "--newest-part")
    assert sorted(parts) == sorted(files_of("others", "--newest"))


COMBINED = """
import pytest

@pytest.fixture(params=["sqlite", "redis"])
def store(request):
    return request.param

@pytest.mark.parametrize(("law", "holds"), [("a", True), ("b", False), ("c", True)])
def test_laws(store, law, holds):
    pass

@pytest.mark.parametrize("way", "xy")
@pytest.mark.parametrize("size", [1, 2])
def test_ways(way, size):
    pass

def test_again(store):
    pass

def test_each_fault():
    exhaust("life")
"""


def test_each_test_and_each_value_of_a_parameter_runs_once(tmp_path: Path) -> None:
    file = tmp_path / "test_combined.py"
    file.write_text(COMBINED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "--each-value-once",
        "-v",
        "--rootdir=.",
        "test_combined.py",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "support"), os.environ["PYTHONPATH"]])}
    run = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert re.findall(r"::test_(\S+) PASSED", run.stdout) == [
        *("laws[sqlite-a-True]", "laws[sqlite-b-False]", "laws[sqlite-c-True]", "laws[redis-a-True]"),
        *("ways[1-x]", "ways[1-y]", "ways[2-x]"),
        "again[sqlite]",
    ], run.stdout + run.stderr


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
