"""The actors: what Ray needs of hosts, whose bodies are plain classes of `turnwise.actors.hosting`."""
