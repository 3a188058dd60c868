"""A store around another store, which encrypts what it keeps with a key for each user."""
