"""Archives of sessions as lines of JSON: export, checked import, and archiving of expired sessions.

`format.py` says what a file holds. `actors.client` and the command line import from the modules here; programs use
`export_session` and `import_session` of `turnwise.stores`, or a manager's methods.
"""
