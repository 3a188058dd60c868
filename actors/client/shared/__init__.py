"""What both families of clients use, and what does not wait: arguments, options, the way to sessions, handles' ids.

The families are in `actors/client` and `actors/client/blocking`; nothing here imports from either. Import each name
from the module that defines it.
"""
