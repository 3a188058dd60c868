"""`make demo` works on a bare machine: no key, an empty home, no terminal."""

import re
from itertools import pairwise

import pytest

from example_program import run_example

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the quickstart prints."""
    return run_example(tmp_path_factory, "quickstart.py", FORCE_COLOR="1")[0]


def test_without_a_terminal_the_output_is_plain_lines(printed: str) -> None:
    assert not re.search(r"[^\n\x20-\x7e]", printed)
    assert "raylet" not in printed
    assert printed.rstrip().splitlines()[-1].startswith("All of this has happened")


def test_four_conversations_of_three_users_are_streamed(printed: str) -> None:
    streamed = re.findall(r"^\[(\S+)] .+ \(streamed in (\d+) pieces\)$", printed, re.MULTILINE)
    assert {talk for talk, _ in streamed} == {"ada/rivers", "ada/sky", "alan/bread", "grace/whales"}
    assert all(int(pieces) > 1 for _, pieces in streamed)


def test_the_conversations_run_concurrently(printed: str) -> None:
    talks = re.findall(r"^\[(\S+)]", printed, re.MULTILINE)
    assert sum(talk != other for talk, other in pairwise(talks)) > 5


def test_a_cancelled_answer_keeps_what_was_seen(printed: str) -> None:
    assert "[grace/whales] * RunCancelledError: Grace has heard enough" in printed
    kept = re.search(r"^\[grace/whales] \* kept in the history: the (\d+) words above$", printed, re.MULTILINE)
    assert kept and int(kept[1]) > 0


def test_a_session_whose_process_is_killed_comes_back_with_its_history(printed: str) -> None:
    killed = re.search(r"^\[alan/bread] \* process (\d+) was killed$", printed, re.MULTILINE)
    back = re.search(r"^\[alan/bread] \* came back as process (\d+) with the same history$", printed, re.MULTILINE)
    assert killed and back and killed[1] != back[1]
    between = printed[killed.end() : back.start()]
    assert "[alan/bread] * RunInterruptedError: " in between
    assert 'The first thing was: "Why does bread rise? ' in between, "the provider was sent the history"


def test_a_run_can_be_followed_by_its_id(printed: str) -> None:
    assert re.search(r"^\[ada/sky] \* re-attached to run \w{24} after event \d+$", printed, re.MULTILINE)
    assert "[ada/sky] * the two halves are the whole answer" in printed


def test_a_second_process_shows_what_is_in_the_store(printed: str) -> None:
    shown = printed[printed.index("A second process") :]
    for talk in (
        "ada/rivers of user ada",
        "grace/whales of user grace",
        "alan/bread of user alan",
        "ada/sky of user ada",
    ):
        assert talk in shown.splitlines()
    assert "    [cancelled]\n" in shown
    assert "    [interrupted]\n" in shown
    for _, answer in re.findall(r"^\[(ada/rivers)] (.+) \(streamed in \d+ pieces\)$", printed, re.MULTILINE):
        assert f"    {answer}\n" in shown
