"""Session stores: the protocol in `base`, and one implementation for each place: memory, SQL, Redis, encrypted.

`urls` reads a URL, `plugins` finds stores of other packages, `conformance` holds the laws of every store.
"""
