"""Where gangs run: the `Backend` interface, and one module per kind."""
