"""LangGraph: its graphs as engines, our stores as its checkpointers and stores, its messages as blocks."""
