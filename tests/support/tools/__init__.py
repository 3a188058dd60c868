"""Agents, their tools, and calls of these.

Tools that processes of sessions can import, agents in seeded schedules, and calls without a session.
"""
