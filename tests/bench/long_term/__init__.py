"""What long-term memory finds and costs.

`recall.py` is `make bench-memory`, and `finders.py`, `messages.py`, `fact_set.py`, `standing.py` and `weights.py` are
parts of it. `remembering.py` and `forgetting.py` are parts of `make bench`.
"""
