"""The session store in a Redis, and what all stores in a Redis share."""
