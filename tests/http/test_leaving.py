"""What becomes of a run whose client leaves, and asked that the run ends then; without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.http.native.runs import cancel_own
from turnwise.memory.conversation.runs import RunRecord


class Handle:
    """A handle of a run whose prompts are in the run `leading`."""

    run_id = "own"

    def __init__(self, leading: str) -> None:
        self.leading = leading
        self.reasons: list[str] = []

    async def info(self) -> RunRecord:
        return RunRecord(
            session_id="s", run_id=self.leading, turn_index=0, state="running", first_seq=1, created_at=0.0
        )

    async def cancel(self, reason: str) -> bool:
        self.reasons.append(reason)
        return True


@pytest.mark.parametrize(("leading", "cancels"), [("own", 1), ("others", 0)])
async def test_a_leaving_client_ends_its_own_run_but_none_it_joined(leading: str, cancels: int) -> None:
    handle: Any = Handle(leading)
    await cancel_own(handle)
    assert len(handle.reasons) == cancels
