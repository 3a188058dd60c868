"""Long-term memory: the protocol in `base`, and its implementations `lexical`, `vector`, `static` and `extraction`.

Packages: items (storage), index (vectors), recall (how items are found), extraction (facts that a model finds in
messages), retention (expiry and deletion), migration. Programs import names from `turnwise.memories`; `actors` imports
from the modules here.
"""
