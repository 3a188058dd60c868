"""`make window` works with no key, an empty home and no terminal."""

import re
from types import ModuleType

import pytest

from long_conversation import FACTS, conversation
from processes.example_program import run_example

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

TURNS = 60
NAMES = ["Trim", "DeleteOldest", "Summarize", "FlushToMemory"]


@pytest.fixture(scope="module")
def printed(ray_session: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a shorter run of the example prints. It has checked that all requests fit and all turns are readable."""
    address = ray_session.get_runtime_context().gcs_address
    return run_example(tmp_path_factory, "long_conversation.py", "--turns", str(TURNS), ray_address=address)[0]


def row(printed: str, title: str) -> dict[str, str]:
    """Return the cells of a row of the table."""
    match = re.search(rf"^ *{title}  +(.+)$", printed, re.MULTILINE)
    assert match, printed
    return dict(zip(NAMES, re.split(r" {2,}", match[1]), strict=True))


def section(printed: str, name: str) -> str:
    """Return the output about one of the conversations."""
    match = re.search(rf"^\[{name}] > .*?(?=^\[|^All of this)", printed, re.MULTILINE | re.DOTALL)
    assert match, printed
    return match[0]


def test_the_program_prints_plain_lines_and_succeeds(printed: str) -> None:
    assert not re.search(r"[^\n\x20-\x7e]", printed)
    assert "raylet" not in printed
    assert printed.rstrip().splitlines()[-1].startswith("All of this has happened")


def test_each_strategy_makes_room_several_times_and_keeps_all_turns_readable(printed: str) -> None:
    assert all(int(count) > 1 for count in row(printed, "compactions").values())
    assert set(row(printed, "turns still readable").values()) == {str(TURNS + 1)}


def test_trimmed_and_deleted_turns_are_not_known_any_more(printed: str) -> None:
    for name in ("Trim", "DeleteOldest"):
        assert row(printed, "the model knows it from")[name] == "-"
        assert "You have not told me" in section(printed, name)


def test_summarized_turns_are_known_and_the_summary_expands_to_them(printed: str) -> None:
    assert row(printed, "the model knows it from")["Summarize"] == "summary"
    output = section(printed, "Summarize")
    assert f"You told me: {FACTS[1]}\n" in output
    assert re.search(rf"The summary stands for \d+ blocks; .*: {re.escape(FACTS[0])}\n", output)


def test_flushed_turns_are_recalled(printed: str) -> None:
    assert row(printed, "the model knows it from")["FlushToMemory"] == "memory"
    assert "My parental leave is booked from 2 March to 29" in section(printed, "FlushToMemory")


def test_the_conversation_is_reproducible_and_has_each_fact_once() -> None:
    prompts = conversation(TURNS)
    assert prompts == conversation(TURNS) and len(prompts) == TURNS
    assert all(sum(fact in prompt for prompt in prompts) == 1 for fact in FACTS)
