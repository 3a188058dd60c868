"""The laws of `SessionStore`, which every store is tested by; `suite` lists all of them.

Needs no test framework.
"""
