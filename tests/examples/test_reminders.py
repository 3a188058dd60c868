"""`examples/reminders.py` needs no Ray, no key and no network."""

import pytest

from processes.example_program import run_example


@pytest.mark.by_turns
def test_reminders_come_once_though_a_program_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    printed, _ = run_example(tmp_path_factory, "reminders.py", timeout_s=60, RAY_ADDRESS="127.0.0.1:9")
    assert printed.count("As you wished: Remind me of the tea") == printed.count("I shall tell you") == 1
    before, after = printed.split("It was killed.")
    assert "As you wished: Tell me to stretch." in before and "As you wished: Tell me to stretch." in after
    assert "The news come earlier, next " in printed
    assert printed.endswith("Still scheduled for sarah: news\n")
