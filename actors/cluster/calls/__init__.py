"""How requests reach actors and come back: by Ray, over a socket of the same machine, one by one or in batches.

The other modules of `actors/cluster` import from here; clients see `ActorProcess` as a `SessionProcess` only.
"""
