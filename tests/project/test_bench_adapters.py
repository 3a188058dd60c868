"""`make bench-adapters` prints all its measurements. Its goals are not tested, since that needs a quiet machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench/adapters.py"

MEASURED = [
    *(
        f"{framework}, {prompt}: wrapped / (alone + ours)"
        for framework in ("agents-sdk", "langgraph", "pydantic-ai")
        for prompt in ("answer", "use the tool")
    ),
    *(
        f"{engine}: from cancel to the closed connection"
        for engine in ("anthropic", "agents-sdk", "langgraph", "pydantic-ai")
    ),
]
"""Lines of the table, without their columns."""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_bench_of_adapters_prints_a_line_for_each_measurement() -> None:
    command = [sys.executable, str(BENCH), "--turns", "2", "--cancels", "2"]
    support = {"PYTHONPATH": str(BENCH.parents[1] / "support")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | support)
    assert done.returncode == 0, done.stderr
    for line in MEASURED:
        assert done.stdout.count(f"\n{line} ") == 1, done.stdout
