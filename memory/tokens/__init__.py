"""How many tokens blocks take in a request, and how large the windows of models are.

Imports conversation and providers.
"""
