"""How requests reach actors and come back: by Ray, over a socket of the same machine, one by one or in batches."""
