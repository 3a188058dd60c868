"""Runs the tests in three lanes side by side: those that share a Ray and programs with a Ray of their own, both of
which wait a lot, and all others, which compute.

python tests/lanes.py [arguments of pytest]
"""

import subprocess
import sys
import threading

LANES = {
    "others": "not soak and not litellm and not ray",
    "ray": "not soak and not litellm and ray and not own_ray",
    "own ray": "not soak and not litellm and own_ray",
}

NO_TESTS = 5
"""What pytest exits with if it was given none: a lane may be empty."""


def tell(lane: str, process: "subprocess.Popen[str]") -> None:
    for line in process.stdout or ():
        print(f"{lane:>7} | {line}", end="", flush=True)


def main(arguments: list[str]) -> int:
    processes = {
        lane: subprocess.Popen(
            [sys.executable, "-m", "pytest", "--durations=12", "-m", chosen, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for lane, chosen in LANES.items()
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
