"""LLM sessions as Ray actors: durable turns, cancellable runs, shared long-term memory."""

__all__: list[str] = []
