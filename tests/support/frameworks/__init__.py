"""Frameworks, and servers that speak another API than turnwise's own.

Models of the OpenAI Agents SDK and of LangGraph, clients of front ends, MCP servers, Gemini, LiteLLM's proxy, and what
servers with OpenAI's API refuse.
"""
