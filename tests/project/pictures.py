"""Makes the picture of the README in docs/images: `make pictures`.

A real Ray, as `ray start --head` starts it, and two real programs: the first is killed in the middle of an answer that
it prints, the second goes on behind the last event that the first had seen. The picture is what they printed. Fails
unless both parts together are the whole answer.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parents[2] / "docs/images"

ANSWER = (
    "Where a river bends a little, it runs faster along the outside and carries the bank away, and on the slow inside "
    "it drops what it carried. So bends grow, until a flood cuts through one and leaves a lake behind."
)

ASK = f"""
from pathlib import Path

from turnwise import SessionManager
from turnwise.testing import ScriptedEngine

engine = ScriptedEngine([{ANSWER!r}], word_s=0.25)
with SessionManager("sqlite:///chats.db", engine=engine) as manager:
    run = manager.open("rivers").run("Why do rivers meander?")
    for event in run.events():
        Path("place").write_text(f"{{run.run_id}} {{event.seq}}")
        if event.kind == "text_delta":
            print(event.text, end="", flush=True)
"""

FOLLOW = """
from pathlib import Path

from turnwise import EchoEngine, SessionManager

with SessionManager("sqlite:///chats.db", engine=EchoEngine()) as manager:
    run_id, seen = Path("place").read_text().split()
    run = manager.execution(run_id)
    was = run.status()
    for event in run.events(after=int(seen)):
        if event.kind == "text_delta":
            print(event.text, end="", flush=True)
    print(f"\\n\\n[{was} when this began, {run.status()} now; {len(run.wait().text.split())} words are stored]")
"""

CUT = len("Where a river bends a little, it runs faster along the outside and ")


@contextmanager
def standing_ray(env: dict[str, str]) -> Iterator[None]:
    """Start Ray as `ray start --head` does, at a port and in a folder of its own; stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--include-dashboard=false"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                if "Ray runtime started" in line:
                    break
            else:
                raise SystemExit("Ray did not start")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()


def killed_midway(program: str, env: dict[str, str]) -> str:
    """Run a program, and kill it as soon as it has printed so much; return that."""
    command = [sys.executable, program]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        printed = b""
        while len(printed) < CUT:
            piece = os.read(process.stdout.fileno(), 4096)
            assert piece, f"{program} ended by itself"
            printed += piece
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.read()
        assert process.wait() == -signal.SIGKILL
    return printed.decode()


def picture(ask: str, follow: str) -> str:
    """Return the terminal as SVG that asks no other host for fonts."""
    console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    sign = ("$ ", "bold green")
    console.print(Text.assemble(sign, "ray start --head"))
    console.print(Text.assemble(sign, "python ask.py"))
    console.print(Text.assemble(ask, ("Killed", "bold red")))
    console.print(
        Text.assemble(sign, "python follow.py", ("    # it has the run's id and the last event from a file", "dim"))
    )
    *answer, last = follow.rstrip().splitlines()
    console.print("\n".join(answer).rstrip())
    console.print(Text(last, "cyan"))
    drawn = console.export_svg(title="kill -9 in the middle of an answer", unique_id="killed")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=IMAGES, help="the folder of the pictures")
    to = parser.parse_args().to
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as folder:  # sockets need a short path
        os.chdir(folder)
        env = os.environ | {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        env.pop("RAY_ADDRESS", None)  # the programs find the Ray by its folder
        Path("ask.py").write_text(ASK, encoding="utf-8")
        Path("follow.py").write_text(FOLLOW, encoding="utf-8")
        with standing_ray(env):
            ask = killed_midway("ask.py", env)
            time.sleep(0.5)
            ran = subprocess.run([sys.executable, "follow.py"], env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    follow = ran.stdout
    assert ask + follow.partition("\n")[0] == ANSWER, (ask, follow)
    assert "[running when this began, completed now" in follow, follow
    to.mkdir(exist_ok=True)
    (to / "killed.svg").write_text(picture(ask, follow), encoding="utf-8")


if __name__ == "__main__":
    main()
