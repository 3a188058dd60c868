"""Measures turnwise among other libraries, and writes what came of it to docs/benchmarks.md: `make bench-peers`.

With QUICK=1 it is a check that it works: its numbers mean little, so it prints the page and writes nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import page_parts
from peers import page
from peers.bench import Bench, ask_all
from peers.peer import Model
from peers.worker import MAKERS, PLACES, Worker, WorkerError

ROOT = Path(__file__).parents[3]
KEPT = ROOT / ".cache/peers.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turnwise", default=str(ROOT / ".venv/bin/python"), help="the Python that has turnwise")
    parser.add_argument("--questions", nargs="*", default=page.QUESTIONS, choices=page.QUESTIONS)
    parser.add_argument("--peers", nargs="*", default=[*MAKERS], choices=[*MAKERS])
    parser.add_argument("--add", action="store_true", help="keep the last results of the other questions")
    parser.add_argument("--write", action="store_true", help="only write the page, of the last results")
    options = parser.parse_args()
    quick = os.environ.get("QUICK", "0") not in ("", "0")
    results: dict[str, Any] = json.loads(KEPT.read_text()) if options.add or options.write else {}
    failed = [] if options.write else measure(results, options, quick)
    if quick:
        print(page.text_of(results))
    elif not failed:
        page.write(results, ROOT / "docs")
    return len(failed)


def measure(results: dict[str, Any], options: argparse.Namespace, quick: bool) -> list[str]:
    """Add the results of the questions; return those that failed."""

    def start(name: str, folder: Path, model: Model, env: Any) -> Worker:
        is_turnwise = PLACES[name][0].startswith("peers.libraries.turnwise")
        return Worker(options.turnwise if is_turnwise else sys.executable, name, folder, model, env)

    results["machine"] = page_parts.machine()
    results.setdefault("seconds", {})
    results.setdefault("runs", {})
    failed, began = [], time.monotonic()
    peers = [name for name in options.peers if not quick or name != "turnwise, dedicated"]  # it starts many processes
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        bench = Bench(start, peers, Path(folder), quick)
        with bench.all("versions", Model()) as workers:
            results["versions"] = ask_all(workers, "versions")
        for question in options.questions:
            question_began = time.monotonic()
            try:
                results[question] = importlib.import_module(f"peers.{question}").ask(bench)
                results["runs"][question] = {"command": command(), "day": page_parts.today()}
            except WorkerError:
                traceback.print_exc()
                failed.append(question)
            results["seconds"][question] = time.monotonic() - question_began
            print(f"{question}: {results['seconds'][question]:.0f} s", file=sys.stderr, flush=True)
            if not quick:
                KEPT.parent.mkdir(exist_ok=True)
                KEPT.write_text(json.dumps(results), encoding="utf-8")
    print(f"{time.monotonic() - began:.0f} s in all", file=sys.stderr)
    return failed


def command() -> str:
    """Return the command that this is, with the name of the data's file, and without its folder."""
    data = Path(os.environ.get("DATA", "")).name
    words = [
        f"DATA={data}" if data else "",
        "make bench-peers",
        f'ARGS="{" ".join(sys.argv[1:])}"' if sys.argv[1:] else "",
    ]
    return " ".join(filter(None, words))


if __name__ == "__main__":
    sys.exit(main())
