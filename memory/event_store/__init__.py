"""Event stores: the events of sessions, apart from the conversations. What `history_store=` takes.

`base.py` has the protocol, `urls.py` opens a store by its URL, `conformance.py` has the laws. Programs import names
from `turnwise.stores`; rooms above import them from the modules here.
"""
