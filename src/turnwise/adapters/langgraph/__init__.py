"""LangGraph: its graphs as engines, our stores as its checkpointers and stores, its messages as blocks.

`engine.py` makes an engine of a graph, `saver.py` has the checkpointer, `store.py` the store. Programs import the names
from `turnwise.adapters`; nothing else imports from the modules here.
"""
