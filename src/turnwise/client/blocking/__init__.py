"""The blocking family of the client, made from the modules above by `make blocking`.

Only `steps.py` is written by hand: it has what the two families do in different ways.
Import public names from `turnwise.client`.
"""
