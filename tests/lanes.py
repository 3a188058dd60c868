"""Runs the tests in three lanes side by side: two of those that need a Ray, which wait a lot, and one of all others.

python tests/lanes.py [arguments of pytest]
"""

import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

FIRST_ROOMS = {"client", "console", "examples", "hosting", "inference"}
"""Whose tests on Ray take as long as those of all other rooms."""

NO_TESTS = 5
"""What pytest exits with if it was given none: a lane may be empty."""


def may_need_ray(file: Path) -> bool:
    """Return whether tests in this file may need a Ray, by the fixtures and the marker that it names."""
    return bool(re.search(r"\b(ray_session|ray_address|make_manager|mark\.ray)\b", file.read_text(encoding="utf-8")))


def lanes_of(arguments: Sequence[str]) -> Mapping[str, list[str]]:
    """Return what pytest is given in each lane. Arguments that name files leave one lane for those on Ray."""
    others, on_ray = ["-m", "not soak and not litellm and not ray"], ["-m", "not soak and not litellm and ray"]
    if any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        return {"others": others, "ray": on_ray}
    # To import all files of tests takes seconds, so these lanes are told which ones.
    files = [file for file in sorted(Path(__file__).parent.glob("*/test_*.py")) if may_need_ray(file)]
    first = [str(file) for file in files if file.parent.name in FIRST_ROOMS]
    second = [str(file) for file in files if file.parent.name not in FIRST_ROOMS]
    return {"others": others, "ray 1": [*on_ray, *first], "ray 2": [*on_ray, *second]}


def tell(lane: str, process: "subprocess.Popen[str]") -> None:
    for line in process.stdout or ():
        print(f"{lane:>6} | {line}", end="", flush=True)


def main(arguments: list[str]) -> int:
    processes = {
        lane: subprocess.Popen(
            [sys.executable, "-m", "pytest", "--durations=12", *chosen, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for lane, chosen in lanes_of(arguments).items()
    }
    tellers = [threading.Thread(target=tell, args=each) for each in processes.items()]
    for teller in tellers:
        teller.start()
    try:
        codes = {lane: process.wait() for lane, process in processes.items()}
    finally:
        for process in processes.values():
            process.terminate()  # those that an interrupt has left
    for teller in tellers:
        teller.join()
    failed = [code for code in codes.values() if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
