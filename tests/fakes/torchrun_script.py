"""A script that torchrun starts twice: it trains and then tests, and each rank writes down what came of it."""

import json
import sys
from pathlib import Path

from fakes.trained_models import DigitsData, DigitsModel, Recipe
from fakes.trained_runs import RUN, describe_rank

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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
