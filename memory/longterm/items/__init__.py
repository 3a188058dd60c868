"""Stores of memory items: the protocol in `base`, in memory, in SQL, in Redis, and their laws."""
