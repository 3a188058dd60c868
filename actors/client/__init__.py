"""The objects that callers use: session managers, sessions, execution handles; each blocking and asynchronous.

Programs import them from `turnwise`. The command line, `http`, `console` and `adapters` import from the modules here.
Each request is written once, in `requests.py` and its neighbours, for callers that block and callers that await.
"""
