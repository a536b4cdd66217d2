"""Which cause each fault gets, over drawn runs: what is drawn, how it runs, what is counted."""
