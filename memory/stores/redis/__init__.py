"""The session store in Redis, and the database code that all Redis stores share.

`store.py` has the store; `database.py` is what items, working memory and LangGraph's checkpoints build on. Programs
open the store by a `redis://` URL; `RedisStore` is imported from `turnwise.stores`.
"""
