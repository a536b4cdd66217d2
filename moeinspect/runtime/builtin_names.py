"""How embedded models and drafts without a model are named; known without torch."""

BUILTIN_PREFIX = "builtin:"

RANDOM_SHARED = "builtin:random-shared"
"""The random target with a shared expert in each MoE layer."""

RANDOM_HASH = "builtin:random-hash"
"""The random target whose first MoE layers are hash-routed."""

EMBEDDED_TARGETS = ("builtin:tiny", "builtin:random", RANDOM_SHARED, RANDOM_HASH)
"""Those that have a draft of their own and newer weights."""

NGRAM = "ngram"
"""A draft that looks its proposals up in the request's own tokens; it has no model."""


def builtin_draft_of(model: str) -> str | None:
    """The embedded draft that was made for an embedded target; None for any other model."""
    return f"{model}-draft" if model in EMBEDDED_TARGETS else None


def builtin_update_of(model: str) -> str | None:
    """Newer weights of an embedded target; None for any other model."""
    return f"{model}-updated" if model in EMBEDDED_TARGETS else None


def draft_model_of(draft: str | None) -> str | None:
    """The model that a run's draft loads: a folder or an embedded name; None if it needs none."""
    return None if draft == NGRAM else draft
