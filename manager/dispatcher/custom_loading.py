"""Finding and making a user's own tuner or assessor."""

import importlib
import os
import sys
from typing import Any

from proctor.manager.dispatcher.protocol import AlgorithmSpec


class CustomClassError(Exception):
    """The class named in the configuration is not there or is not of the right kind."""


def load_custom(spec: AlgorithmSpec, methods: tuple[str, ...]) -> Any:
    """Import `module.Class` from its folder and make one with the class arguments.

    Raises CustomClassError, or whatever the user's code raises.
    """
    class_name = spec.class_name or ""
    module_name, _, name = class_name.rpartition(".")
    if not module_name:
        raise CustomClassError(f"className must be module.Class, found {class_name!r}")
    if spec.code_directory is not None:
        sys.path.insert(0, os.path.abspath(spec.code_directory))
    module = importlib.import_module(module_name)
    factory = getattr(module, name, None)
    if factory is None:
        raise CustomClassError(f"{module.__file__} has no class {name}; className is {class_name!r}")
    missing = [method for method in methods if not callable(getattr(factory, method, None))]
    if missing:
        raise CustomClassError(f"{class_name} lacks {', '.join(missing)}; derive it from the base class")
    return factory(**spec.class_args)


def prepare_environment(checkpoint_directory: str) -> None:
    """Set what NNI promises to the code of tuners and assessors."""
    os.environ["SDK_PROCESS"] = "dispatcher"
    os.environ["NNI_CHECKPOINT_DIRECTORY"] = checkpoint_directory
    os.environ.setdefault("NNI_MODE", "start")
    os.environ.setdefault("NNI_LOG_LEVEL", "info")
    os.environ.setdefault("NNI_INCLUDE_INTERMEDIATE_RESULTS", "false")
