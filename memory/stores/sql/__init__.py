"""The session store in SQLite or PostgreSQL, and what all stores in an SQL database share."""
