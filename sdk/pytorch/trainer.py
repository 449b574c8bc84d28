"""The trainer: options in, a trained model and a folder of checkpoints out."""

from collections.abc import Callable
from typing import Any

from proctor.sdk.pytorch import run as runs
from proctor.sdk.pytorch import trial
from proctor.sdk.pytorch.data import DataModule
from proctor.sdk.pytorch.errors import ConfigurationError, TrainerError
from proctor.sdk.pytorch.launching import Task, launch
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.plugins import Plugin, Plugins
from proctor.sdk.pytorch.queues import HandoverQueue
from proctor.sdk.pytorch.run import Outcome, Run
from proctor.sdk.pytorch.settings import make_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from proctor.sdk.pytorch.options import TrainerOptions


class Trainer:
    """Runs that can be stopped anywhere and continued bit for bit.

    :param run_name: names the checkpoints; a run with the same name and root continues the one before.
    :param options: see `TrainerOptions`.
    :raises ConfigurationError: an option is unknown, out of its range, or contradicts another.
    """

    def __init__(self, run_name: str, **options: "Unpack[TrainerOptions]") -> None:
        self.settings = make_settings(run_name, dict(options))
        self.queue = HandoverQueue()  # what the model's processes have put into `model.queue`
        self._plugins = Plugins()

    def register_plugin(self, plugin: Plugin) -> None:
        """Add a plug-in to the runs to come.

        :raises KeyError: another one has its id.
        :raises ConfigurationError: its id is reserved, or another one has claimed one of its overrides.
        """
        self._plugins.register(plugin)

    def fit(self, model: Model, datamodule: DataModule) -> Outcome:
        """Train until `total_steps` are done or a rule stops the run; continue from the latest checkpoint if any.

        A run that is finished is left as it is.

        :raises TrainerError: the trainer refuses something.
        :raises RuntimeError: something else failed; its cause is what was raised, unless `train_exceptions` names it.
        """
        with trial.deferring_termination():
            return self._launch(runs.fit, model, datamodule, exceptions=self.settings.train_exceptions)

    def test(self, model: Model, datamodule: DataModule) -> Outcome:
        """Test the latest checkpoint or, without one, what `Model.load_for_testing` loads.

        :raises TrainerError: the trainer refuses something.
        :raises RuntimeError: something else failed; its cause is what was raised, unless `test_exceptions` names it.
        """
        return self._launch(runs.test, model, datamodule, exceptions=self.settings.test_exceptions)

    def _launch(
        self, work: "Callable[[Run], Outcome]", model: Model, datamodule: DataModule, *, exceptions: "tuple[Any, ...]"
    ) -> Outcome:
        _check_kind("model", model, Model)
        _check_kind("data module", datamodule, DataModule)
        try:
            return launch(Task(work, self.settings, model, datamodule, self._plugins), self.queue)
        except (*exceptions, TrainerError):
            raise
        except (Exception, SystemExit) as problem:  # no failure may look like a trial that has done its work
            raise RuntimeError(
                f"{work.__name__} of run {self.settings.run_name} failed: {type(problem).__name__}: {problem}"
            ) from problem


def _check_kind(what: str, found: Any, expected: type) -> None:
    if isinstance(found, expected):
        return
    is_class = isinstance(found, type) and issubclass(found, expected)
    raise ConfigurationError(
        f"the {what} must be an object of a class that derives from {expected.__name__}; found {found!r}."
        + (f" Make one: {found.__name__}(…)." if is_class else "")
    )
