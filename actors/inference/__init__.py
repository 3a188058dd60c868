"""Inference: what turns a turn into its answer. Imports no Ray: engines run wherever a session runs."""
