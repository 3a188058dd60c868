"""What happens when a conversation outgrows the model's window. Imports `turnwise.memory` and nothing above."""
