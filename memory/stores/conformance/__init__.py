"""The laws of `SessionStore`, which every store is tested by; `suite` lists all of them.

Needs no test framework. Programs import `check_session_store` from `turnwise.conformance`; laws of other stores import
the fixtures from the modules here.
"""
