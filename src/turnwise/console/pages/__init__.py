"""The pages of the console, one in a file, and what only one of them shows beside its list.

`app.py` registers them by their paths; nothing else imports from here.
"""
