"""Working memory: a short note of a session or a user that is part of every request.

`memory.py` has the class, `formats.py` what a note may be. Programs import `WorkingMemory` from `turnwise.memories`;
`actors` imports from the modules here.
"""
