"""Vectors of items, apart from the items: the protocol `Vectors`, its laws, Chroma, PostgreSQL, embedding.

`vector_index.py` is what memories use. Programs import names from `turnwise.memories`.
"""
