"""`nni.experiment.config`: the configuration classes where NNI's scripts import them from."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module(__name__.rpartition(".")[0]), name)
