"""The quickstart and doctor work on a bare machine: the wheel and what it needs, no key, an empty home, no terminal."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from processes.clean_install import clean_install, hidden_modules
from processes.example_program import HIDDEN, run_example
from processes.late_ray import without_late_start

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PYTHONPATH of the installed wheel."""
    return clean_install(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def printed(installed: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the quickstart prints."""
    return run_example(tmp_path_factory, "quickstart.py", FORCE_COLOR="1", PYTHONPATH=installed)[0]


@pytest.mark.by_turns
def test_doctor_finds_nothing_wrong(installed: str, tmp_path: Path) -> None:
    assert {"fastapi", "psycopg", "redis", "pytest", "mypy"} <= hidden_modules()
    where = [sys.executable, "-c", "import turnwise; print(turnwise.__file__)"]
    doctor = [sys.executable, "-m", "turnwise", "doctor", f"sqlite:///{tmp_path}/none-yet.db"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)} | {"PYTHONPATH": installed}
    home, ended = (
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        for command in (where, doctor)
    )
    assert home.stdout.startswith(installed), home
    assert ended.returncode == 0 and without_late_start(ended.stderr) == "", ended
    assert re.search(r"^ok +turnwise +", ended.stdout, re.MULTILINE) and "fail" not in ended.stdout


@pytest.mark.by_turns
def test_without_a_terminal_the_output_is_plain_lines(printed: str) -> None:
    assert not re.search(r"[^\n\x20-\x7e]", printed)
    assert "raylet" not in printed
    assert printed.rstrip().splitlines()[-1].startswith("All of this has happened")


def test_four_conversations_of_three_users_are_streamed(printed: str) -> None:
    streamed = re.findall(r"^\[(\S+)] .+ \(streamed in (\d+) pieces\)$", printed, re.MULTILINE)
    assert {talk for talk, _ in streamed} == {"ada/rivers", "ada/sky", "alan/glass", "grace/whales"}
    assert all(int(pieces) > 1 for _, pieces in streamed)


def test_the_conversations_run_concurrently(printed: str) -> None:
    talks = re.findall(r"^\[(\S+)]", printed, re.MULTILINE)
    assert sum(talk != following for talk, following in pairwise(talks)) > 5


def test_a_cancelled_answer_keeps_what_was_seen(printed: str) -> None:
    assert "[grace/whales] * RunCancelledError: Grace has heard enough" in printed
    match = re.search(r"^\[grace/whales] \* kept in the history: the (\d+) words above$", printed, re.MULTILINE)
    assert match and int(match[1]) > 0


def test_a_history_is_sent_with_the_next_prompt(printed: str) -> None:
    assert '[ada/rivers] The first thing was: "Why do rivers meander? Answer in 40 words."' in printed


def test_an_answer_whose_process_is_killed_goes_on_in_another(printed: str) -> None:
    killed = re.search(r"^\[alan/glass] \* process (\d+) was killed$", printed, re.MULTILINE)
    after = re.search(r"^\[alan/glass] \* process (\d+) has answered, and the stream went on$", printed, re.MULTILINE)
    assert killed and after and killed[1] != after[1]
    between = printed[killed.end() : after.start()]
    assert "[alan/glass] * resumed: " in between
    assert "[alan/glass] Sand, soda and lime" in between and "said of church windows. (streamed" in between


def test_a_run_can_be_followed_by_its_id(printed: str) -> None:
    assert re.search(r"^\[ada/sky] \* re-attached to run \w{24} after event \d+$", printed, re.MULTILINE)
    assert "[ada/sky] * the two halves are the whole answer" in printed


def test_the_store_has_all_sessions_at_the_end(printed: str) -> None:
    listing = printed[printed.index("In the store") :]
    for talk in (
        "ada/rivers of user ada",
        "grace/whales of user grace",
        "alan/glass of user alan",
        "ada/sky of user ada",
    ):
        assert f"  {talk}: " in listing
