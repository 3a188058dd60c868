"""A wrapper of a store that encrypts all stored text, with one key per user.

Programs import its settings from `turnwise.stores`. `event_store` and `archive` encrypt by the modules here too:
`keys.py` has the keys, `records.py` says which fields of a record are encrypted.
"""
