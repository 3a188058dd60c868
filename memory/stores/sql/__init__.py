"""The session store in SQLite or PostgreSQL, and the database code that all SQL stores share.

`store.py` has the store; `database.py` is what events, items, working memory and LangGraph's checkpoints build on.
Programs open the store by a `sqlite:` or `postgresql:` URL; `SQLStore` is imported from `turnwise.stores`.
"""
