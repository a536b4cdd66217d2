"""Ranks of one worker: who they are, how they talk, and what each of them holds."""
