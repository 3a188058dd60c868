"""The session store in Redis, and the database code that it shares with the store of memory items, `RedisItems`.

`store.py` has the session store, `database.py` what both share. Programs open the store by a `redis://` URL;
`RedisStore` is imported from `turnwise.stores`.
"""
