"""Where turnwise stands among others: `make bench-peers`.

`peer.py` says what a peer can do, and the modules of `libraries` do it, one library each. A question is one file, whose
docstring says what is held equal: `growth.py`, `many.py`, `second.py`, `stopping.py`, `crash.py`, `teams.py`,
`timers.py`, `resident.py`, `starting.py`, `replay.py` and `recall.py`, which asks long-term memories. Its `ask` is
carried out by the bench, and its coroutines by the peers' processes; its `show` makes tables. `worker.py` is a peer's
process, `page.py` makes `docs/benchmarks.md`, `behind.py` says where others are ahead, and `plots.py` draws.
"""
