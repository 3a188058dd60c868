"""Storage of items: the protocol `ItemStore`, its laws, and its implementations in SQL, Redis and memory.

`base.py` has the protocol, `changes.py` what is done to one item, `rules.py` what all stores have to obey.
"""
