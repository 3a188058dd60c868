"""`make agent` works with no key, an empty home and no terminal."""

import re
from types import ModuleType

import pytest

from processes.example_program import run_example

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def printed(ray_session: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the example prints."""
    address = ray_session.get_runtime_context().gcs_address
    return run_example(tmp_path_factory, "agent_with_tools.py", ray_address=address)[0]


def section(printed: str, prompt: str) -> str:
    """Return the output from a prompt up to the next one."""
    match = re.search(rf"^\[\S+] > {prompt}.*?(?=^\[|^What it has cost)", printed, re.MULTILINE | re.DOTALL)
    assert match, printed
    return match[0]


def test_the_program_prints_plain_lines_and_succeeds(printed: str) -> None:
    assert not re.search(r"[^\n\x20-\x7e]", printed)
    assert "raylet" not in printed
    assert printed.rstrip().splitlines()[-1].startswith("All of this has happened")


def test_two_tools_run_concurrently(printed: str) -> None:
    output = section(printed, "How is the weather")
    assert "rain in Ghent, 14 degrees" in output and '"minutes":155' in output
    steps = re.findall(r"^  (\w+) +(\d+\.\d+) s  ( *)=+$", output, re.MULTILINE)
    assert [name for name, _, _ in steps] == ["model", "weather", "travel_time", "model"]
    assert all(float(seconds) > 0 for _, seconds, _ in steps)
    indents = [len(indent) for _, _, indent in steps]
    assert abs(indents[1] - indents[2]) <= 2 and indents[3] >= indents[1] + 16, "0.8 s are 16 columns"


def test_a_call_waits_until_a_person_edits_or_rejects_it(printed: str) -> None:
    output = section(printed, "Book 6 seats")
    assert output.index("* awaiting_approval: book {'train': '9317', 'seats': 6}") < output.index(
        "* approved by another"
    )
    assert output.endswith("What I found out: 2 seats on 9317, for ada\n\n")
    assert "rejected: there is no such train" in section(printed, "Book 3 seats").splitlines()[-2]


def test_a_killed_run_continues_and_repeats_only_repeatable_calls(printed: str) -> None:
    output = section(printed, "At once: charge me")
    killed, resumed = re.search(r"process (\d+) was killed", output), re.search(r"resumed by process (\d+)", output)
    assert killed and resumed and killed[1] != resumed[1]
    assert "What I found out: charged 80 euros; the 10:25 is the quietest\n" in output
    assert "* times called: charge 1, quietest_train 2\n" in output


def test_a_result_is_provided_by_the_caller(printed: str) -> None:
    output = section(printed, "Ask the taxi driver")
    assert "* awaiting_approval: ask_driver" in output
    assert "What I found out: yes, he waits at the east side\n" in output


def test_the_cost_is_printed_by_user(printed: str) -> None:
    rows = re.findall(r"^  (\w+) +(\d+) calls of the model, (\d+) of tools, .+: \$(\d\.\d+)$", printed, re.MULTILINE)
    assert [row[:3] for row in rows] == [("ada", "6", "3"), ("alan", "2", "3"), ("grace", "2", "0")]
    assert all(float(cost) > 0 for *_, cost in rows)
