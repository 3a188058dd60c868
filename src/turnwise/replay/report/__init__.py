"""The report of a replay: a page that opens without a server, and what its head says of all turns.

Its modules import records and statistics of the replay, and nothing that replays.
Import names from the module that has them.
"""
