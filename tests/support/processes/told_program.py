"""Programs that do what a test tells them, a line of JSON each, such as on nodes of a cluster.

`ToldProgram` is for the test. The program itself calls `obey`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes.ray_nodes import started
from turnwise.errors import TurnwiseError
from turnwise.memory.values.ids import new_id


class ToldProgram:
    """A program that runs."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process, self._errors = process, errors
        assert self._hear() == "ready"

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Have it do something; return what it found."""
        outcome = self.try_to(verb, **arguments)
        assert "error" not in outcome, outcome
        return outcome["found"]

    def refusal(self, verb: str, **arguments: Any) -> tuple[str, str]:
        """Have it do something that is refused; return the class of the error, and its message."""
        outcome = self.try_to(verb, **arguments)
        assert "error" in outcome, outcome
        return outcome["error"], outcome["says"]

    def try_to(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something; return what it found, or the error."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self._process.stdin.flush()
        outcome: dict[str, Any] = self._hear()
        return outcome

    def _hear(self) -> Any:
        assert self._process.stdout
        while line := self._process.stdout.readline():
            _, is_answer, answer = line.partition(_ANSWER)
            if is_answer:  # Ray prints there, too, before and behind
                return json.JSONDecoder().raw_decode(answer)[0]
        raise AssertionError(self._errors.read_text()[-4000:])


@contextmanager
def told(script: Path, folder: Path, env: Mapping[str, str], *words: str) -> Iterator[ToldProgram]:
    """Run a program that obeys, in a folder that has none of the code; end it with all that it has started."""
    errors = folder / f"errors-{new_id()}"
    with errors.open("w") as out:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": out}
        with started([sys.executable, script, *words], dict(env), cwd=folder, **pipes) as process:
            yield ToldProgram(process, errors)


async def obey(program: object) -> None:
    """Do what each line says: the name of a method of the program, and its arguments."""
    print(f'{_ANSWER}"ready"', flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, arguments = json.loads(line)
        try:
            outcome = {"found": await getattr(program, verb)(**arguments)}
        except TurnwiseError as error:
            outcome = {"error": type(error).__name__, "says": str(error)}
        print(f"{_ANSWER}{json.dumps(outcome)}", flush=True)


_ANSWER = ">>> "
