"""How embedded models are named; known without torch."""

BUILTIN_PREFIX = "builtin:"


def builtin_draft_of(model: str) -> str | None:
    """The embedded draft that was made for an embedded target; None for any other model."""
    return f"{model}-draft" if model in ("builtin:tiny", "builtin:random") else None


def builtin_update_of(model: str) -> str | None:
    """Newer weights of an embedded target; None for any other model."""
    return f"{model}-updated" if model in ("builtin:tiny", "builtin:random") else None
