"""Servers that tests start: PostgreSQL, Redis, a collector of OpenTelemetry's, and turnwise's own service.

Also clients of the service, a realm in this process, and how long one step holds up everybody else.
"""
