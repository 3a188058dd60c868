"""The OpenAI Agents SDK (`openai-agents`): its agents as engines, and our sessions as its sessions."""
