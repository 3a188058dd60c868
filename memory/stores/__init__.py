"""Session stores: the protocol in `base`, and one implementation for each place: memory, SQL, Redis, encrypted.

`urls` reads a URL, `plugins` finds stores of other packages, `conformance` holds the laws of every store. Programs
import names from `turnwise.stores`; rooms above import them from the modules here.
"""
