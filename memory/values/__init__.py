"""Values that every room uses: ids, bounds, ranges, immutable JSON, copies of records, checks of settings.

Imports nothing but errors. All other rooms import from the modules here.
"""
