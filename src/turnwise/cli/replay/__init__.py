"""`turnwise replay`: `command.py` has the command.

Only `commands.py` imports from here.
"""
