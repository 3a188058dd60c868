"""Stores of memory items: the protocol in `base`, in memory, in SQL, in Redis, and their laws.

`urls.py` opens a store by its URL. Programs import names from `turnwise.stores`; memories import from the modules here.
"""
