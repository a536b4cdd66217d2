"""The processes of a run: how they are obtained, connected and watched."""
