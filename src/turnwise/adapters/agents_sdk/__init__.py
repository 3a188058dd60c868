"""The OpenAI Agents SDK (`openai-agents`): its agents as engines, and our sessions as its sessions.

`engine.py` makes an engine of an agent, `session.py` a session for its runner. Programs import the names from
`turnwise.adapters`; nothing else imports from the modules here.
"""
