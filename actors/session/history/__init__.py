"""What changes a session's past: forgetting, removing, forking, importing, events that are added later.

`SessionCore` and the verbs in `turnwise.actors.hosting` import from here.
"""
