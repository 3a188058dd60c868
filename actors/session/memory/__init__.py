"""A session's long-term memories: what runs recall from them, and how far its turns are saved in them.

`state`, `runs`, `window` and `history` import from here.
"""
