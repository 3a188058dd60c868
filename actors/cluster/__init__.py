"""Code that spans processes: placement, nodes, shared actors, and the messages between callers and sessions."""
