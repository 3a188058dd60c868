"""The actors: their bodies are plain classes of `turnwise.actors.hosting`, and these modules are what Ray needs of them."""
