"""What is derived from blocks and events: lists of messages, phases, steps, partial answers, tables in notebooks.

Import from the modules here in any room above `turnwise.memory.values`; nothing here is stored.
"""
