"""Runs programs one after the other, each as `__main__`: their imports and their connection to Ray are made once.

It reads lines of JSON: the path of a program, the folder to run it in, and prefixes of environment variables that it
does not get. It answers each with a line of JSON: whether it ended without an exception, and what it printed.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType


def run(path: str, folder: str, hidden: list[str]) -> tuple[bool, str]:
    os.chdir(folder)
    usual = dict(os.environ)
    for name in usual:
        if name.startswith(tuple(hidden)):
            del os.environ[name]
    module = ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), vars(module))
        except BaseException:  # noqa: BLE001 - whatever a program raises is its outcome
            traceback.print_exc()
            return False, printed.getvalue()
        finally:
            os.environ.update(usual)
    return True, printed.getvalue()


def actors() -> set[str]:
    """Return the names of the actors of sessions and memories on the Ray that programs connected to, if any did."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return set()
    return {
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == "turnwise"
    }


def end(names: set[str]) -> None:
    """End these actors, so that the processes of earlier programs do not add up."""
    for name in names:
        with contextlib.suppress(ValueError):  # it has left by itself
            sys.modules["ray"].kill(sys.modules["ray"].get_actor(name, namespace="turnwise"))


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no answer
    for line in sys.stdin:
        path, folder, hidden = json.loads(line)
        before = actors()
        outcome = run(path, folder, hidden)
        if "SessionManager(" in Path(path).read_text(encoding="utf-8"):  # its own, and not those of a service
            end(actors() - before)
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
