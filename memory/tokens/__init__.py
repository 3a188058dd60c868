"""Token counts of blocks in requests, and the context windows of models.

Imports conversation and providers. `strategies` and `actors.session` import from the modules here.
"""
