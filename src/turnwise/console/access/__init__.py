"""Who may use the console: the gate before all pages, the login, the sockets of pages, and their viewer.

`app.py` and the pages import from here.
"""
