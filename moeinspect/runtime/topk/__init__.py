"""Top-k backends behind one interface; all capture through the gate."""
