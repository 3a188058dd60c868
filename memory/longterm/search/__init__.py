"""Search of items, shared by all memories: analysis of text, queries, ranking, the index of a user's items.

Memories import from the modules here; programs need none of its names.
"""
