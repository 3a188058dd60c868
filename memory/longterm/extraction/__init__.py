"""`ExtractiveMemory`: facts that a model extracts from a user's messages, verified before they are stored.

`memory.py` has the class; the others are steps of an extraction. Programs import it from `turnwise`.
"""
