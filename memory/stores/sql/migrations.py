"""Migrations: for each older version, the statements that change its tables to the next version.

They run in one transaction with the update of the version number, in SQL for both SQLite and PostgreSQL. They never
change after a release. Columns are named, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "calls", "tool_calls")

MIGRATIONS: Mapping[int, Sequence[str]] = {
    # Sessions and runs have usage; runs have tool calls, can wait for approval, and can be resumed.
    1: (
        *(f"ALTER TABLE turnwise_sessions ADD COLUMN {name} BIGINT DEFAULT 0 NOT NULL" for name in _COUNTS),
        "ALTER TABLE turnwise_sessions ADD COLUMN seconds DOUBLE PRECISION DEFAULT 0 NOT NULL",
        "ALTER TABLE turnwise_sessions ADD COLUMN cost DOUBLE PRECISION DEFAULT 0 NOT NULL",
        *(f"ALTER TABLE turnwise_runs ADD COLUMN {name} TEXT" for name in ("code", "usage", "stop_reason", "calls")),
        "ALTER TABLE turnwise_runs ADD COLUMN resumes BIGINT DEFAULT 0 NOT NULL",
        "DROP INDEX turnwise_runs_open",
        """CREATE INDEX turnwise_runs_open ON turnwise_runs (session, turn_index)
        WHERE state IN ('queued', 'running', 'awaiting_approval')""",
        """UPDATE turnwise_runs SET (usage, stop_reason) = (SELECT usage, stop_reason FROM turnwise_turns
        WHERE turnwise_turns.session = turnwise_runs.session AND turnwise_turns.idx = turnwise_runs.turn_index)""",
    ),
    # Turns have `carried`.
    2: ("ALTER TABLE turnwise_turns ADD COLUMN carried TEXT",),
    # Long-term memory: how sessions and runs use it, and up to which turn a session is saved. Existing turns count as
    # saved, so that they are not sent to long-term memory.
    3: (
        "ALTER TABLE turnwise_sessions ADD COLUMN memory TEXT",
        "ALTER TABLE turnwise_sessions ADD COLUMN saved BIGINT DEFAULT -1 NOT NULL",
        "UPDATE turnwise_sessions SET saved = next_index - 1",
        "ALTER TABLE turnwise_turns ADD COLUMN forgotten BOOLEAN",
        "ALTER TABLE turnwise_runs ADD COLUMN memory TEXT",
    ),
    # Sessions may expire.
    4: (
        "ALTER TABLE turnwise_sessions ADD COLUMN ttl_s DOUBLE PRECISION",
        "CREATE INDEX turnwise_sessions_ttl ON turnwise_sessions (key) WHERE ttl_s IS NOT NULL",
    ),
    # Commits are matched by the revision that they follow.
    5: ("ALTER TABLE turnwise_sessions ADD COLUMN revision BIGINT DEFAULT 0 NOT NULL",),
    # Sessions and runs have a model and request parameters; runs have the type of the answer.
    6: (
        *(f"ALTER TABLE turnwise_sessions ADD COLUMN {name} TEXT" for name in ("model", "params")),
        *(f"ALTER TABLE turnwise_runs ADD COLUMN {name} TEXT" for name in ("model", "params", "output")),
    ),
    # Turns have an id of the caller's, and runs a parent.
    7: (
        "ALTER TABLE turnwise_turns ADD COLUMN turn_id TEXT",
        "ALTER TABLE turnwise_runs ADD COLUMN parent TEXT",
    ),
    # Sessions have a title.
    8: ("ALTER TABLE turnwise_sessions ADD COLUMN title TEXT",),
    # Sessions and runs name their engine.
    9: tuple(f"ALTER TABLE turnwise_{table} ADD COLUMN engine TEXT" for table in ("sessions", "runs")),
    # Blocks of turns may be removed from what later turns continue.
    10: ("ALTER TABLE turnwise_turns ADD COLUMN removed TEXT",),
    # Usage says which tokens were counted, since no provider reported them.
    11: ("ALTER TABLE turnwise_sessions ADD COLUMN counted_tokens BIGINT DEFAULT 0 NOT NULL",),
}
