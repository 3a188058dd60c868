"""Deliveries: what a session is to do later, by itself, and when.

Stores, archives, sessions and the dispatcher import from the modules here. They know sessions' records, and no store.
"""
