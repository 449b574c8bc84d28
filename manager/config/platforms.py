"""The one list of training platforms a configuration may name, and the message about each."""

import importlib.util
from dataclasses import dataclass
from enum import StrEnum

from proctor.manager.config.key_names import nearest


class Availability(StrEnum):
    """Whether an experiment can run on a platform."""

    SUPPORTED = "supported"  # trials run there
    CONVERTED = "read as kubernetes"  # the section is rewritten before it is read (operators.py)
    NOT_YET = "not yet"  # planned; the configuration is understood and refused
    REFUSED = "refused"  # will not come; something else does its work


@dataclass(frozen=True)
class Platform:
    """A platform with what to do where it cannot be used."""

    name: str
    availability: Availability
    advice: str = ""
    keys: tuple[str, ...] = ()
    """NNI's keys of the section, for platforms without a model of their own here."""
    aliases: tuple[str, ...] = ()
    needs: tuple[str, str] | None = None
    """A module that must be installed, and what to give to pip to install it."""

    @property
    def refusal(self) -> str:
        """The sentence for a configuration that names this platform; empty when it may."""
        match self.availability:
            case Availability.SUPPORTED:
                if self.needs is None or importlib.util.find_spec(self.needs[0]) is not None:
                    return ""
                module, package = self.needs
                return f"platform {self.name} needs {module}: pip install '{package}'"
            case Availability.CONVERTED:
                return ""
            case Availability.NOT_YET:
                return f"platform {self.name} is not yet available: {self.advice}"
            case Availability.REFUSED:
                return f"platform {self.name} is not offered: {self.advice}"


_USE_OURS = "use platform local or remote, on the machines that have the GPUs"

_ONE_WORKER = (
    "one role with one pod is a plain Job; more are refused: use platform kubernetes, with several GPUs of one node"
)

_ALL = (
    Platform("local", Availability.SUPPORTED),
    Platform("remote", Availability.SUPPORTED, needs=("asyncssh", "proctor[remote]")),
    Platform("kubernetes", Availability.SUPPORTED, needs=("kubernetes", "proctor[kubernetes]")),
    Platform("kubeflow", Availability.CONVERTED, _ONE_WORKER),
    Platform("frameworkcontroller", Availability.CONVERTED, _ONE_WORKER),
    Platform(
        "openpai",
        Availability.REFUSED,
        f"NNI 3.0 removed it too; {_USE_OURS}, or inside an OpenPAI job",
        (
            *("host", "username", "token", "trialCpuNumber", "trialMemorySize", "storageConfigName"),
            *("dockerImage", "virtualCluster", "localStorageMountPoint", "containerStorageMountPoint"),
            *("reuseMode", "openpaiConfig", "openpaiConfigFile"),
        ),
        ("pai", "paiYarn"),
    ),
    Platform(
        "aml",
        Availability.REFUSED,
        f"{_USE_OURS}, such as virtual machines of Azure",
        (
            *("subscriptionId", "resourceGroup", "workspaceName", "computeTarget", "dockerImage"),
            *("maxTrialNumberPerGpu",),
        ),
    ),
    Platform(
        "dlc",
        Availability.REFUSED,
        f"{_USE_OURS}, such as instances of Alibaba Cloud",
        (
            *("type", "image", "jobType", "podCount", "ecsSpec", "region", "workspaceId", "nasDataSourceId"),
            *("ossDataSourceId", "accessKeyId", "accessKeySecret", "localStorageMountPoint"),
            "containerStorageMountPoint",
        ),
    ),
    Platform(
        "adl", Availability.REFUSED, "NNI 3.0 removed it too; use platform kubernetes, whose trials are plain Jobs"
    ),
    Platform("dlts", Availability.REFUSED, _USE_OURS),
    Platform(
        "hybrid",
        Availability.REFUSED,
        "one experiment runs on one training service; give one mapping, not a list: platform remote takes any "
        "number of machines",
    ),
)
PLATFORMS: dict[str, Platform] = {platform.name: platform for platform in _ALL}
_BY_ANY_NAME = {name: platform for platform in _ALL for name in (platform.name, *platform.aliases)}


def find_platform(name: str) -> Platform | None:
    """The platform of this name or of one of its old names, None for an unknown one."""
    return _BY_ANY_NAME.get(name)


def nearest_platform(name: str) -> str | None:
    """The platform whose name looks most like this one."""
    return nearest(name, _BY_ANY_NAME)


def supported_platforms() -> tuple[str, ...]:
    """The names of our own that a configuration may use today."""
    return tuple(name for name, entry in PLATFORMS.items() if entry.availability is Availability.SUPPORTED)


def plug_in_platforms() -> tuple[str, ...]:
    """The names that installed packages have registered, less those of our own that may be used. Asked only where a
    configuration names none of ours: looking at every installed package takes its time.

    Raises BrokenPlatform when two packages claim one name.
    """
    from proctor.training_services.registry import BUILT_IN, known_platforms

    return tuple(name for name in known_platforms() if name not in BUILT_IN)
