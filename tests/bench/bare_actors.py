"""Makes empty actors in a Ray of its own, as Ray is by default, and prints how long each took until its first answer.

python tests/bench/bare_actors.py COUNT

The processes that Ray prepares when it starts are used up before.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray

CPUS = 2


class Bare:
    def call(self) -> None:
        """Do nothing."""


def start() -> tuple[float, Any]:
    began = time.perf_counter()
    actor: Any = ray.remote(Bare).options(num_cpus=0).remote()
    ray.get(actor.call.remote())
    return time.perf_counter() - began, actor


def main(count: int) -> None:
    ray.init("local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    while sum(process.info["name"] == "ray::IDLE" for process in psutil.process_iter(["name"])) < CPUS:
        time.sleep(0.1)
    taken = []
    for _ in range(CPUS + count):
        seconds, actor = start()
        taken.append(seconds)
        ray.kill(actor)
        time.sleep(0.5)
    print(json.dumps(taken[CPUS:]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
