"""What spans processes: placement, nodes, shared actors, and the types that cross the wire."""
