"""The session store in SQLite or PostgreSQL, and the database code that all SQL stores share."""
