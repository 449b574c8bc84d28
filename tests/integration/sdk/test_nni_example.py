"""The example that was written for NNI, run as its keeper would run one trial of it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "nni-unchanged"


def test_parameters_that_make_it_diverge_are_reported_as_such(job: Any, tmp_path: Path) -> None:
    code = shutil.copytree(EXAMPLE, tmp_path / "project") / "code"
    parameters = {"degree": 5, "learning_rate": 0.5, "momentum": 0.95, "batch_size": 4.0}
    (job.folder / "parameter.json").write_text(json.dumps({"parameters": parameters}))
    command = [job.interpreter, "train.py", "--epochs", "300"]
    done = subprocess.run(command, cwd=code, env=job.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert job.values("final") == ["NaN"]
