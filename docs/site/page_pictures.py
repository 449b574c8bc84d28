"""Draw the pictures of the dashboard's pages: `make pictures`. Needs Chromium (`make test-servers`).

The manager is real and serves a made-up experiment, the same one each time. What is drawn depends on the fonts of the
machine, so a test only looks whether each page has its picture.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fakes.dashboard import browsing, visiting
from fakes.real_manager import real_manager

FOLDER = Path(__file__).parents[1] / "pictures"
SIZE = {"width": 1440, "height": 900}
PAGES = {
    "experiments": ("/", "sample of"),
    "compare_experiments": ("/compare?experiments={experiment},{other}", "Search spaces"),
    "overview": ("/experiments/{experiment}", "Best trial"),
    "trials": ("/experiments/{experiment}/trials", "weight_decay"),
    "compare": ("/experiments/{experiment}/compare?trials=0,1,2,3", "Side by side"),
    "curves": ("/experiments/{experiment}/curves?smooth=0.5", "over the density of"),
    "relations": ("/experiments/{experiment}/relations", "PED-ANOVA"),
    "trial": ("/trials/{trial}", "Intermediate values"),
    "events": ("/experiments/{experiment}/events", "SUCCEEDED"),
    "search": ("/experiments/digits/search?q=loss", "lines in"),
    "nodes": ("/nodes", "last report"),
    "log": ("/log", "is at http"),
}
"""By the name of the picture: the address, and a text that is there once the page is."""


PRINTS = """
import proctor
x = proctor.get_next_parameter()["x"]
for epoch in range(1, 4):
    print(f"epoch {epoch}: loss {x / epoch:.4f}, learning rate 0.01")
proctor.report_final_result(x / 3)
"""


def draw(folder: Path) -> None:
    """All pages, in light colors."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        command = [sys.executable, "-m", "proctor.manager.sample", "--home", str(home)]
        for options in (["--trials", "200", "--parameters", "8", "--seed", "1"], ["--trials", "500"]):
            subprocess.run([*command, *options], check=True, env={**os.environ, "PROCTOR_PORT": "0"})
        with real_manager(Path(name) / "work", home=home) as manager, browsing() as browser:
            manager.create(PRINTS, experiment_id="digits", maxTrialNumber=8, trialConcurrency=4)
            manager.until_status("digits", "DONE")
            size = {one["id"]: sum(one["trial_counts"].values()) for one in manager.client.experiments()}
            experiment, other, _ = sorted(manager.client.experiments(), key=lambda one: -size[one["id"]])
            names = {"experiment": experiment["id"], "other": other["id"], "trial": experiment["best"]["trial_id"]}
            look: dict[str, Any] = {"color_scheme": "light", "viewport": SIZE}
            with visiting(browser, manager, **look) as visitor:
                visitor.expected_errors = ("404", "409", "503")  # a made-up trial has no files
                for picture, (path, text) in PAGES.items():
                    page = visitor.goto(path.format(**names))
                    page.get_by_text(text).locator("visible=true").first.wait_for()
                    page.wait_for_function("() => !/Reading the|Computing/.test(document.body.innerText)")
                    page.wait_for_timeout(1000)  # charts are drawn after their data have come
                    page.screenshot(path=folder / f"{picture}.png", animations="disabled")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
