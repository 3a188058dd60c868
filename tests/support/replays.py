"""Answers, and records of turns with two answers, as a replay makes them."""

import asyncio
from typing import Any

from turnwise import Usage
from turnwise.replay import Answer, TurnReplay
from turnwise.replay.comparing import Comparing


def answer(text: str = "", *, cost: float = 0.0, **fields: Any) -> Answer:
    """Return an answer, complete by default."""
    return Answer(text=text, usage=Usage(cost=cost), **{"status": "completed", **fields})


def turn(was: Answer, now: Answer, *, session: str = "chat", floor: Answer | None = None, **fields: Any) -> TurnReplay:
    """Return the record of a turn: its recorded answer and a new one."""
    comparing = Comparing()
    values: dict[str, Any] = {
        "session_id": session,
        "user_id": "ann",
        "agent": None,
        "turn_index": 0,
        "run_id": "run",
        "labels": {},
        "created_at": 0.0,
        "position": 0,
        "window_blocks": 0,
        "prompt": "Why?",
        "recorded": was,
        "answer": now,
        "change": asyncio.run(comparing.change(was, now)),
        "floor": floor,
        "floor_change": floor and asyncio.run(comparing.change(was, floor)),
    }
    return TurnReplay(**{**values, **fields})
