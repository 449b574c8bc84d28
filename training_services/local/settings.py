"""The settings of platform `local`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from proctor.training_services.capacity import GpuRules


@dataclass(frozen=True)
class LocalSettings:
    """How trials use the GPUs of this machine."""

    use_active_gpu: bool = False
    """Use GPUs on which processes of others run; own trials never count."""
    max_trial_number_per_gpu: int = 1
    """How many trials may share one GPU."""
    gpu_indices: tuple[int, ...] | None = None
    """The GPUs trials may use; None: all."""

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> "LocalSettings":
        """From the `trainingService` section; keys of other parts are left alone."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: _tupled(value) for key, value in settings.items() if key in known})

    def replace(self, key: str, value: Any) -> "LocalSettings":
        """The settings with one of them changed. Raises KeyError for an unknown key."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values[key]  # raises KeyError
        return LocalSettings(**{**values, key: _tupled(value)})

    @property
    def rules(self) -> GpuRules:
        """What placement keeps to."""
        return GpuRules(
            max_trials_per_gpu=self.max_trial_number_per_gpu,
            use_active_gpu=self.use_active_gpu,
            gpu_indices=self.gpu_indices,
        )


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
