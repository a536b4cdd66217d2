"""Running a model: from a scheduled batch to its results on the host."""
