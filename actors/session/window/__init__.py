"""What happens when a session's conversation outgrows its window: plans are carried out, requests are made to fit.

`runs` and `history` import from here, and so do `SessionCore` and the verbs in `turnwise.actors.hosting`.
"""
