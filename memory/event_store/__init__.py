"""Event stores: the events of sessions, apart from the conversations. What `history_store=` takes."""
