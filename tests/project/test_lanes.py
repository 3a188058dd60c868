"""The lanes of `make test` run each test once."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
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


def test_every_file_is_in_a_lane_of_one_of_the_two_commands() -> None:
    files = {target: [*map(name_of, files_of("others", target, all_days=True))] for target in ("", "--more")}
    assert sorted(files[""] + files["--more"]) == sorted(name_of(file) for file in TESTS.rglob("test_*.py"))
    assert files[""][: len(LONG)] == LONG and files["--more"][0] == MORE[0]
    for target, names in files.items():
        assert {*map(name_of, files_of("ray", target, all_days=True))} < set(names)
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
from scale import one_a_day

@pytest.fixture(params=["sqlite", "redis"])
def store(request):
    return request.param

@pytest.mark.on_each_store
@pytest.mark.parametrize("url", ["memory", "sqlite"])
def test_users(url):
    pass

@pytest.mark.parametrize("law", ["a", "b"])
def test_laws(store, law):
    pass

@pytest.mark.by_turns
@pytest.mark.parametrize("url", ["memory", "postgresql", "redis"])
def test_kills(url):
    pass

@one_a_day("first,second", [(1, 2), (3, 4)], ["up", "down"])
@pytest.mark.parametrize("size", [1, 2])
def test_places(first, second, size):
    pass

@pytest.mark.parametrize("url", ["file://x", "sqlite"])
def test_again(url):
    pass
"""


DAYS_TOLD = """
import json, scale

def pytest_collection_modifyitems(items):
    for day in range(9):
        scale.today = lambda: day
        print(json.dumps([item.name.removeprefix("test_") for item in scale.of_today(items)]))
"""


def run_pytest(*arguments: object, env: Mapping[str, str] | None = None, folder: Path = TESTS.parent) -> str:
    """Return what pytest printed, with the variables of an environment besides."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, arguments)],
        env={**os.environ, **(env or {})},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_each_day_a_test_has_another_store_and_another_third_of_those_by_turns_runs(tmp_path: Path) -> None:
    (tmp_path / "test_combined.py").write_text(COMBINED)
    (tmp_path / "days_told.py").write_text(DAYS_TOLD)
    folders = [str(TESTS), str(TESTS / "support"), str(tmp_path), os.environ["PYTHONPATH"]]
    options = ["-p", "conftest", "-p", "days_told", "--rootdir=.", "--collect-only", "-s"]
    printed = run_pytest(*options, "test_combined.py", folder=tmp_path, env={"PYTHONPATH": os.pathsep.join(folders)})
    days: list[list[str]] = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert len(days) == 9
    for names in days:
        kills = [name for name in names if name.startswith("kills")]
        assert len(kills) <= 1 and len(names) - len(kills) == 2 + 2 + 2 + 2
        for law in "ab":
            assert sum(name in (f"laws[sqlite-{law}]", f"laws[redis-{law}]") for name in names) == 1
    assert sum(name.startswith("kills") for names in days for name in names) == 3
    assert len({name for names in days for name in names}) == 2 + 2 * 2 + 3 + 2 * 2 + 2


def test_a_lane_alone_leaves_stores_to_other_days(tmp_path: Path) -> None:
    file = TESTS / "session/history/test_deletion_reports.py"
    (lane := tmp_path / "lane").mkdir()
    (all_days := tmp_path / "all-days").mkdir()
    (passed,) = passed_of(run_pytest(file))
    assert passed_of(run_pytest("--all-days", file, env={TAKEN: str(all_days)})) == [passed]
    assert passed_of(run_pytest(file, env={TAKEN: str(lane)})) < [passed]


def passed_of(printed: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) passed", printed)]


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
