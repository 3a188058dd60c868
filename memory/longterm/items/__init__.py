"""Storage of items: the protocol `ItemStore` in `base.py`, its laws, and its implementations in SQL, Redis and memory.

`changes.py` has what is done to one item, `rules.py` what all stores obey. Programs import names from
`turnwise.stores`; memories import from the modules here.
"""
