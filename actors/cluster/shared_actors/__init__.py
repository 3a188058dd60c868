"""The actors that all sessions share: one for each long-term memory, and one for a store in memory.

`client` and `hosting` import from here, and so does what creates actors in `turnwise.actors.cluster`.
"""
