"""`examples/cluster_job.py` on one node; `tests/cluster/test_cluster_on_ray.py` runs it on several."""

import json
from pathlib import Path

from processes.example_program import play_example


def test_the_job_talks_in_postgresql(ray_address: str, database: str, tmp_path: Path) -> None:
    printed = play_example(ray_address, tmp_path, "cluster_job.py", database, "--chats", "2", "--packed", "1")
    report = json.loads(printed.splitlines()[-1])
    assert report == {"turns": [2, 2], "sessions by node": [2]}
