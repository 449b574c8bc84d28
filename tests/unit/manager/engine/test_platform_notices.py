"""What a platform says that is about no single job."""

from collections.abc import Sequence
from functools import partial

from fakes import small_experiments
from fakes.small_experiments import Scene, SceneService, played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.training_services.base import SupportsNotices
from proctor.training_services.in_memory.scripts import Final


class NoticingService(SceneService, SupportsNotices):
    """Says one sentence, once."""

    has_said = False

    def take_notices(self) -> Sequence[str]:
        news = [] if self.has_said else ["a right is missing"]
        self.has_said = True
        return news


class NoticingScene(Scene):
    """Its platform has something to say."""

    service = NoticingService
    config = Scene.config | {"maxTrialNumber": 2}


play = partial(small_experiments.play, kind=NoticingScene, script=plays(Final(60.0, 1.0)))


@played(play)
async def test_it_is_a_notice_of_the_experiment_once_also_after_a_restart(
    scene: NoticingScene, manager: Manager, /
) -> None:
    await scene.create(seconds=30.0)
    assert await scene.notices() == ["a right is missing"]
    await scene.restart()
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert await scene.notices() == ["a right is missing"]
