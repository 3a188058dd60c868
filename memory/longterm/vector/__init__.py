"""`VectorMemory`: items in a SQLite file, found by words and by vectors in Chroma.

`memory.py` has the class. Programs import it from `turnwise`, and its parts from `turnwise.memories`.
"""
