"""What each request passes before a route: limits of size and number, origins, credentials, paths and traces.

`turnwise.http.app` and the commands that serve import from here; programs import nothing.
"""
