"""Code that spans processes: placement, nodes, shared actors, and the messages between callers and sessions.

`hosting`, `client` and the command line import from the modules here. Of its names, programs need only placements
(`Dedicated`, `Packed`), from `turnwise`.
"""
