"""The session store in Redis, and the database code that all Redis stores share."""
