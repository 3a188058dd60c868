"""Working memory: a short note of a session or a user that is part of every request.

`memory.py` has the class, `base.py` the protocol of its stores. Programs import `WorkingMemory` from
`turnwise.memories`; `actors` imports from the modules here.
"""
