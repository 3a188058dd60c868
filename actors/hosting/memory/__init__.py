"""Long-term memories as hosts: the process that has one, and how all others use it."""
