"""What tells messages between two ranks apart. A pair exchanges each kind in the order of the forwards."""

STAGE = 1
"""Hidden states, from a stage to the next."""

LOGITS = 2
"""Logits, from the last stage to the leader."""

HIDDEN = 3
"""Hidden states that a draft head reads, from a follower to the leader."""

CAPTURED = 4
"""Captured rows, from a follower to the leader."""
