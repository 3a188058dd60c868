"""Files of users: their bytes outside the rows of the session store, once for each content and user.

Imports `conversation` and `values`; session stores, sessions and clients import it. `access` puts the parts together.
"""
