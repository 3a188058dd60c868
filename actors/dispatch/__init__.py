"""The dispatcher of a store's deliveries: knows when the next one is due, and hands it to its session.

It knows stores and no processes: whoever runs one says how a session is reached. Import from the module here.
"""
