"""What an experiment's loop is given: everything that is not the experiment itself."""

from dataclasses import dataclass

from proctor.manager.clock import Clock
from proctor.manager.config import ExperimentConfig
from proctor.manager.dispatcher.client import Opener
from proctor.manager.engine.code import CodeWatch
from proctor.manager.engine.forms import FormWriter
from proctor.manager.engine.placer import Placer
from proctor.manager.engine.stopping import save_time
from proctor.manager.events import ChangeFeed
from proctor.manager.lifecycle.reasons import RetryPolicy
from proctor.manager.store.database import Database
from proctor.training_services.base import SupportsSoftStop, TrainingService


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
        return save_time(self.config.save_seconds) if isinstance(self.service, SupportsSoftStop) else 0.0

    @property
    def retry_policy(self) -> RetryPolicy:
        """The user's budgets."""
        return RetryPolicy(
            max_trial_retries=self.config.max_trial_retries,
            max_infrastructure_retries=self.config.max_infrastructure_retries,
        )
