"""A session as of its last commit: journal, active run, queue and events; and the transactions that change it.

The other rooms of `turnwise.actors.session` import from here; this room imports from `engines` only.
"""
