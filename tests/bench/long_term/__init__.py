"""What long-term memory finds and costs.

`recall.py` is `make bench-memory`, and `fact_set.py`, `standing.py` and `weights.py` are parts of it, of `messages.py`
and of the facts beside it. `remembering.py` and `forgetting.py` are parts of `make bench`.
"""
