"""The packaged example: customer support, a small intent model, and messages to route."""
