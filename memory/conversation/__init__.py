"""What a conversation is made of: blocks, turns, runs, events, and the records that stores keep.

Imports nothing but errors. Everything else may import from the modules here; programs import blocks from
`turnwise.blocks`, events from `turnwise.events`, and the rest from `turnwise` and `turnwise.transcripts`.
"""
