"""What a session's runs use: engines, settings, memories and budgets; builders are built here, and usage is priced.

The rooms `state`, `runs`, `window`, `memory` and `history` import from here.
"""
