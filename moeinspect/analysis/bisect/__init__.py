"""Which switches bring a difference: the search, and what it tells. What runs is the caller's."""
