"""`turnwise chat`: a conversation with a model on a terminal or over a pipe, and what answers in a demo.

`command` has the options and opens the session, `conversation` reads lines and follows runs, `answers` prints them.
Import from these modules.
"""
