"""A second message while an answer comes

Equal: two prompts for one conversation at the same moment, from one program; a model that answers with ten words, a
twentieth of a second each. Nothing is timed: shown is which calls raised an error, and the history when both have
ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from peers.bench import Bench, Table, ask_all, history_text
from peers.peer import TALKING, Peer


async def run_twice(peer: Peer) -> dict[str, Any]:
    turns = (peer.one_of_many("t", prompt) for prompt in ("first", "second"))
    done = await asyncio.gather(*turns, return_exceptions=True)
    errors = [type(error).__name__ for error in done if error is not None]
    while len(before := await peer.history("t")) % 2 and not errors:
        await asyncio.sleep(0.1)
    return {"errors": errors, "history": before}


def ask(bench: Bench) -> dict[str, Any]:
    with bench.all("second", TALKING) as workers:
        return ask_all(workers, "second.run_twice")


def show(result: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    rows = [
        (name, ", ".join(f"`{error}`" for error in outcome["errors"]) or "none", history_text(outcome["history"]))
        for name, outcome in result.items()
    ]
    yield "", [("", "errors", "the history then"), *rows]
