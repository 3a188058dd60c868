"""The objects that callers use: session managers, sessions, execution handles; each blocking and asynchronous.

Programs import them from `turnwise`. The command line, `http`, `console` and `adapters` import from the modules here.
The modules here have the asynchronous family, and `make blocking` makes the modules in `blocking` of their text: what
the two do in different ways is in `steps.py` alone. What neither does in its own way is in `shared`.
"""
