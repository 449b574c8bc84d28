"""What the training service asks of its machines and of who keeps them (`remote.machine`, `remote.provider`)."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from proctor.training_services.errors import BrokenPlatform
from proctor.training_services.registry import ServiceContext
from proctor.training_services.remote.code_archive import CodeArchive
from proctor.training_services.remote.copies import Progress

__all__ = ["Machine", "Provider", "provider_of"]


class Machine(Protocol):
    """One machine, as `remote.machine.Machine`."""

    @property
    def codes(self) -> Collection[str]:
        """The code that is unpacked there, by name."""

    async def ensure_code(self, archive: CodeArchive, on_progress: Progress | None = None) -> None:
        """Have code unpacked there. Raises ServiceUnavailable, RemoteError."""

    async def ensure_folder_copy(self, folder: Path, target: str, on_progress: Progress | None = None) -> None:
        """Have a copy of a local folder there. Raises as `ensure_code`, and OSError."""


class Provider(Protocol):
    """Who keeps the machines, as `remote.provider.RemoteProvider`."""

    def node_ids_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The node of each machine of a configuration."""

    def claim(
        self,
        experiment_id: str,
        settings: Mapping[str, Any],
        secrets: Mapping[str, str],
        *,
        secrets_file: Path | None = None,
    ) -> tuple[str, ...]:
        """The experiment wants its machines. Raises OSError."""

    async def release(self, experiment_id: str, *, owing: Collection[str] = ()) -> None:
        """It needs them no more; those that are `owing` still have files of it."""

    def machine(self, node_id: str) -> Machine:
        """A claimed machine. Raises UnknownNode."""

    def keeper_folder(self, node_id: str) -> str:
        """What a node's keeper directory is called, beside those of other nodes."""


def provider_of(context: ServiceContext) -> Provider:
    """The manager's provider of remote nodes. Raises BrokenPlatform; ImportError with the package to install."""
    if context.providers is None:
        raise BrokenPlatform("platform remote needs a manager that reaches machines, and this one does not")
    return cast(Provider, context.providers.get("remote"))
