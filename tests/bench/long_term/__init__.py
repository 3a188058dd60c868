"""What long-term memory finds and costs.

`remembering.py` and `forgetting.py` are parts of `make bench`; all else is of `recall.py`, `make bench-memory`.
"""
