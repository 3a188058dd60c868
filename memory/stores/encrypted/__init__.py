"""A wrapper of a store that encrypts all stored text, with one key per user."""
