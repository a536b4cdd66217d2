"""The processes of a run: how they are obtained, connected and watched, and what they say to each other."""
