"""Working memory: a short note of a session or a user that is part of every request."""
