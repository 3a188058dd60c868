"""Working memory: a short note of a session or a user, which stands in every request."""
