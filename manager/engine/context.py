"""What all experiments of a manager share. Its own module: the supervisor and what it delegates to both need it."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from proctor.manager.clock import Clock
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.events import ChangeFeed
from proctor.manager.settings import Home
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow
from proctor.training_services.base import TrainingService
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import Providers
from proctor.training_services.registry import ServiceContext

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig

DispatcherFactory = Callable[[ExperimentRow, "ExperimentConfig"], Opener]
ServiceFactory = Callable[[str, ServiceContext], TrainingService]
_CONFIG_MODELS = "proctor.manager.config.experiment"


def already() -> asyncio.Event:
    """An event that has happened."""
    event = asyncio.Event()
    event.set()
    return event


async def load_config_models() -> None:
    """Load the models of configurations, which are large, in a thread: a manager without experiments needs none."""
    if _CONFIG_MODELS not in sys.modules:
        await asyncio.to_thread(import_module, _CONFIG_MODELS)


async def read_config(experiment: ExperimentRow) -> "ExperimentConfig":
    """The configuration of an experiment; nothing is awaited once the models are loaded."""
    await load_config_models()
    from proctor.manager.config.experiment import ExperimentConfig

    return ExperimentConfig.from_canonical(experiment.config)


@dataclass(frozen=True)
class EngineContext:
    """Opened by the composition root, which also closes it."""

    home: Home
    control: Database
    pool: NodePool
    hub: KeeperHub
    clock: Clock
    feed: ChangeFeed
    open_dispatcher: DispatcherFactory
    create_service: ServiceFactory
    providers: Providers | None = None
    is_whole: asyncio.Event = field(default_factory=already)  # set once the control database is known to be whole
    copying: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # see `LoopContext`
    threads: bool = True  # whether databases have threads of their own; a simulation has none
