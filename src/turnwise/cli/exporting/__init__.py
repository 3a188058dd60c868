"""Commands that write sessions to files, or read them from there: archives, and examples for training a model.

`cli/commands.py` imports them from the modules here.
"""
