"""What is remembered, and where: conversations, stores, archives, long-term memory.

Rooms, each importing only from those before it: conversation, providers, tokens, stores, event_store, archive,
longterm, working. Nothing here imports Ray, or anything above `turnwise.errors`. Import a name from the module that
defines it, such as `turnwise.memory.conversation.turns`.
"""
