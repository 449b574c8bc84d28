"""Which training services there are, by the name of their platform.

The built-in ones are in `BUILT_IN`; others come from installed packages by entry points of the group
`proctor.training_services`, whose name is the platform and whose value is a callable (a class, usually) that takes a
`ServiceContext` and returns a `TrainingService` that is `SupportsEvents`.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.training_services.base import SupportsEvents, TrainingService
from proctor.training_services.errors import BrokenPlatform, TrainingServiceError, UnknownPlatform
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import Providers

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["ENTRY_POINT_GROUP", "ServiceContext", "create", "known_platforms"]

ENTRY_POINT_GROUP = "proctor.training_services"

BUILT_IN: Mapping[str, str] = {
    "local": "proctor.training_services.local.service:LocalTrainingService",
    "in_memory": "proctor.training_services.in_memory.service:from_context",
    "remote": "proctor.training_services.remote.service:RemoteTrainingService",
    "kubernetes": "proctor.training_services.kubernetes.service:KubernetesTrainingService",
}


@dataclass(frozen=True)
class ServiceContext:
    """What a training service is made from. It belongs to one experiment; pool and hub belong to the manager."""

    experiment_id: str
    experiment_directory: Path
    pool: NodePool
    hub: KeeperHub
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The `trainingService` section: keys in snake_case, `platform` among them."""
    providers: Providers | None = None
    """Who brings keepers to nodes; None where there are none (some tests)."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """What was taken out of the section, by path ("training_service.machine_list.0.password")."""


def known_platforms() -> list[str]:
    """The names that `create` takes, built-in ones first."""
    return [*BUILT_IN, *sorted(set(_plug_ins()) - set(BUILT_IN))]


def create(platform: str, context: ServiceContext) -> TrainingService:
    """Make the training service of a platform.

    Raises UnknownPlatform for a name that is not registered, BrokenPlatform when the service behind it cannot be
    imported or made, or is not a `TrainingService` and `SupportsEvents`; errors of ours (`TrainingServiceError`) pass
    as they are.
    """
    factory = _find(platform)
    try:
        service = factory(context)
    except TrainingServiceError:
        raise
    except Exception as error:
        raise BrokenPlatform(f"the training service of platform {platform!r} could not be made: {error!r}") from error
    if not isinstance(service, TrainingService):
        raise BrokenPlatform(
            f"the factory of platform {platform!r} returned a {type(service).__qualname__}, "
            "which is not a proctor.training_services.base.TrainingService"
        )
    if not isinstance(service, SupportsEvents):
        raise BrokenPlatform(
            f"the training service of platform {platform!r}, {type(service).__qualname__}, is not a "
            "proctor.training_services.base.SupportsEvents: services push status changes to their listeners and are "
            "never polled, so no job would ever be seen to run or to end; derive the class from SupportsEvents too"
        )
    return service


def _find(platform: str) -> Callable[[ServiceContext], object]:
    try:
        if platform in BUILT_IN:
            module, _, name = BUILT_IN[platform].partition(":")
            found = getattr(importlib.import_module(module), name)
        else:
            found = _plug_in(platform).load()
    except UnknownPlatform:
        raise
    except Exception as error:
        raise BrokenPlatform(
            f"the training service of platform {platform!r} could not be loaded: {error!r}. "
            f"Known platforms: {', '.join(known_platforms())}"
        ) from error
    if not callable(found):
        raise BrokenPlatform(f"the factory of platform {platform!r} is not callable: {found!r}")
    return found  # type: ignore[no-any-return]


def _plug_in(platform: str) -> "EntryPoint":
    plug_ins = _plug_ins()
    if platform not in plug_ins:
        raise UnknownPlatform(
            f"no training service is registered for platform {platform!r}; known: {', '.join(known_platforms())}. "
            f"A package adds one by an entry point of the group {ENTRY_POINT_GROUP!r}"
        )
    return plug_ins[platform]


def _plug_ins() -> "dict[str, EntryPoint]":
    """Entry points by name; two packages that claim one name are an error rather than a matter of luck."""
    from importlib.metadata import entry_points  # here, because it costs every start

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise BrokenPlatform(
                f"two installed packages register platform {entry.name!r}: {other.value} and {entry.value}; "
                "uninstall one of them"
            )
    return found
