"""Replays at scale: many sessions, in one process or with Ray Data, that go on after a kill.

`settings.py` is what a caller sets. `plan.py` fixes which turns are replayed before any is asked; `parts.py` keeps
their records as they come; `pace.py` holds rates and the budget; `worker.py` replays chunks, `process.py` in a
process of its own; `sums.py` adds up what they have found; `run.py` does all of it, here or by Ray Data.
Import the public names from `turnwise.replay`.
"""
