"""The layers of a model, each with a bit-exact and an ordinary way."""
