"""What a conversation is made of: blocks, turns, runs, events, and the records that stores keep.

Imports nothing but errors. Everything else may import from here.
"""
