"""KV slots: who owns them and what they hold."""
