"""Quotas: what users and agents may use in a minute, a day or a month, and the counters of what they have used.

Pure functions and records, which stores and sessions share. Import from the modules.
"""
