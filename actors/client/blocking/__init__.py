"""The blocking family: `SessionManager`, `Session`, `ExecutionHandle` and what they use. Import their names from here.

`steps.py` is written by hand. All other modules are made from those of the same name in `actors/client` by
`make blocking`: change them there.
"""
