"""Run LangGraph's conformance suite against `TurnwiseSaver` on a store, and print the report.

    python -m turnwise.adapters.langgraph.conformance sqlite:///chats.db

Needs the package `langgraph-checkpoint-conformance`. The threads that the suite makes have new ids, and are deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from turnwise.adapters.langgraph.saver import TurnwiseSaver
from turnwise.adapters.version_checks import framework
from turnwise.errors import TurnwiseError
from turnwise.memory.stores.urls import redact

with framework("langgraph-checkpoint-conformance", extra="dev", tested="0.0.2"):
    from langgraph.checkpoint.conformance import checkpointer_test, validate
    from langgraph.checkpoint.conformance.report import CapabilityReport, ProgressCallbacks


async def report_on(url: str, progress: ProgressCallbacks | None = None) -> CapabilityReport:
    """Return the report of the suite, with all capabilities, on the store of a URL.

    Raises:
        StoreURLError: the URL names no store that can be used here.
    """
    used: set[str] = set()

    class Recorded(TurnwiseSaver):
        async def aput(self, config: Any, *args: Any) -> Any:
            used.add(config["configurable"]["thread_id"])
            return await super().aput(config, *args)

        async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            used.add(target_thread_id)
            await super().acopy_thread(source_thread_id, target_thread_id)

    @checkpointer_test(name=f"TurnwiseSaver({redact(url)!r})")
    async def make() -> AsyncGenerator[TurnwiseSaver, None]:
        async with Recorded(url) as saver:
            try:
                yield saver
            finally:
                for thread_id in used:
                    await saver.adelete_thread(thread_id)

    return await validate(make, progress=progress)


def main(args: Sequence[str] | None = None) -> int:
    """Run the suite, print each test and the report; return 0 if every test passed and none was skipped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="the store's URL")
    try:
        report = asyncio.run(report_on(parser.parse_args(args).store, ProgressCallbacks.verbose()))
    except TurnwiseError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    report.print_report()
    results = report.results.values()
    passed, failed, skipped = (
        sum(getattr(result, f"tests_{outcome}") for result in results) for outcome in ("passed", "failed", "skipped")
    )
    sys.stdout.write(f"{passed} passed, {failed} failed, {skipped} skipped\n")
    return int(failed + skipped > 0)


if __name__ == "__main__":
    sys.exit(main())
