"""`examples/team.py` needs no Ray, no key and no network."""

import pytest

from processes.example_program import run_example


@pytest.mark.by_turns
def test_a_team_is_cancelled_and_another_goes_on_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    printed, _ = run_example(tmp_path_factory, "team.py", timeout_s=60, RAY_ADDRESS="127.0.0.1:9")
    assert printed.count("is cancelled, too") == 3
    assert printed.endswith("It says: The report is done.\n")
