"""A script that torchrun starts twice: it trains and then tests, and each rank writes down what came of it.

At its end it becomes a trial, which reports: what it trains must not depend on that.
"""

import json
import os
import sys
from pathlib import Path

from fakes.attempts import make_environment
from fakes.trained_models import DigitsData, DigitsModel, Recipe
from fakes.trained_runs import RUN, describe_rank

import proctor
from proctor.sdk.pytorch import Trainer


class PreparedData(DigitsData):
    """Data that tells how often it was prepared."""

    folder = Path()

    def prepare_data(self) -> None:
        with (self.folder / "prepared").open("a") as file:
            file.write("x")


def main(folder: Path) -> None:
    """Train on both ranks, and test what was trained, in the same processes."""
    recipe = Recipe()  # torchrun says how many processes there are
    trainer = Trainer(RUN, **recipe.options(), chkpt_root=folder)
    model, data = DigitsModel(recipe), PreparedData(recipe)
    data.folder = folder
    outcome = trainer.fit(model, data)
    trained = describe_rank(model)
    tested = trainer.test(model, data)
    found = {
        **trained,
        "world": model.ranks.world_size,
        "reason": str(outcome.reason.value if outcome.reason else None),
        "tested from": str(tested.resumed_from.name if tested.resumed_from else None),
    }
    (folder / f"rank-{model.ranks.rank}.json").write_text(json.dumps(found))
    os.environ.update(make_environment(folder))
    proctor.report_intermediate_result(model.ranks.rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
