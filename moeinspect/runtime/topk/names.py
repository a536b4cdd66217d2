"""Names of top-k backends: the built-in ones, and those that installed distributions register.

Does not import torch, so that a name can be checked before anything is loaded.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from moeinspect.errors import UsageError

ENTRY_POINT_GROUP = "moeinspect.topk_backends"
"""A distribution registers `NAME = "package.module:Class"` here; the class is a `MoEBackend`."""

BUILTIN_BACKENDS = ("torch", "triton", "bypass")


def check_backend_name(name: str) -> None:
    """Raises UsageError if no backend, or more than one, has this name."""
    outside_backend(name)


def outside_backend(name: str) -> EntryPoint | None:
    """The entry point of a backend that is not built in; None for a built-in one. Nothing is imported.

    Raises:
        UsageError: no backend of this name, or several.
    """
    found = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    owners = sorted({distribution_of(entry) for entry in found})
    if name in BUILTIN_BACKENDS:
        owners.insert(0, "moeinspect")
    if len(owners) > 1:
        raise UsageError(
            f"--backend {name}: {' and '.join(owners)} both have a top-k backend of this name",
            f"uninstall {owners[-1]}, or have its backend renamed",
        )
    if not owners:
        raise UsageError(f"--backend {name}: no such top-k backend", f"known: {', '.join(known_backends())}")
    return found[0] if found else None


def known_backends() -> list[str]:
    """Every name that can be asked for."""
    return [*BUILTIN_BACKENDS, *sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})]


def distribution_of(entry: EntryPoint) -> str:
    """Name and version of the distribution that registered an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
