"""A simulated prefix cache, and what requests look like to it."""
