"""What an experiment's loop is given: everything that is not the experiment itself."""

from dataclasses import dataclass

from proctor.manager.clock import Clock
from proctor.manager.config import ExperimentConfig
from proctor.manager.dispatcher.client import Opener
from proctor.manager.engine.code import CodeWatch
from proctor.manager.engine.forms import FormWriter
from proctor.manager.engine.placer import Placer
from proctor.manager.events import ChangeFeed
from proctor.manager.lifecycle.reasons import RetryPolicy
from proctor.manager.store.database import Database
from proctor.training_services.base import SupportsSoftStop, TrainingService

DEFAULT_SAVE_SECONDS = 30.0
"""How long a trial that can save may do so when it is stopped, where the configuration does not say."""


@dataclass(frozen=True)
class Surroundings:
    """Opened by the manager, which also closes them."""

    config: ExperimentConfig
    control: Database
    metrics: Database
    service: TrainingService
    placer: Placer
    clock: Clock
    feed: ChangeFeed
    forms: FormWriter
    code: CodeWatch
    open_dispatcher: Opener
    checkpoint_directory: str

    @property
    def save_seconds(self) -> float:
        """How long a trial may save at most when it is stopped softly."""
        if not isinstance(self.service, SupportsSoftStop):
            return 0.0
        return DEFAULT_SAVE_SECONDS if self.config.save_seconds is None else self.config.save_seconds

    @property
    def retry_policy(self) -> RetryPolicy:
        """The user's budgets."""
        return RetryPolicy(
            max_trial_retries=self.config.max_trial_retries,
            max_infrastructure_retries=self.config.max_infrastructure_retries,
        )
