"""Adapters: other frameworks' agents as engines, and our sessions behind other frameworks' interfaces.

One module or folder a framework, and each needs the extra of its name, such as `turnwise[langgraph]`. A framework is
imported at the first use of a name, through `releases.framework`, so that a missing or changed release is one clear
error. Public names are imported from `turnwise.adapters`.
"""

from turnwise._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
