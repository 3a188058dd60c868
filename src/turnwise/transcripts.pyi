from turnwise.memory.conversation.transcript import (
    Ledger as Ledger,
    Message as Message,
    messages_of as messages_of,
    repair as repair,
)
from turnwise.memory.conversation.views.chat_messages import ChatMessage as ChatMessage
from turnwise.memory.conversation.views.message_formats import (
    MessageFormat as MessageFormat,
    Messages as Messages,
    to_messages as to_messages,
)
from turnwise.memory.conversation.views.rebuild import rebuild as rebuild
from turnwise.memory.providers.message_reading import from_messages as from_messages
from turnwise.memory.providers.requests import Provider as Provider, encode as encode, validate as validate
