"""Runs from the prompt to the end: admission, driving, approvals, prompts that join, recovery after a crash.

`SessionCore` and the verbs in `turnwise.actors.hosting` import from here.
"""
