"""An experiment's configuration: NNI's v2 schema (and v1, converted), read, checked and explained."""

from proctor.manager.config.errors import ConfigError, ConfigProblem, Notice, SourcePosition, describe_problems
from proctor.manager.config.experiment import AlgorithmConfig, ExperimentConfig, ObjectiveConfig, TunerConfig
from proctor.manager.config.loading import LoadedExperiment, load_experiment, load_experiment_mapping
from proctor.manager.config.services import LocalConfig, NodeCodeConfig, RemoteConfig, RemoteMachineConfig

__all__ = [
    "AlgorithmConfig",
    "ConfigError",
    "ConfigProblem",
    "ExperimentConfig",
    "LoadedExperiment",
    "LocalConfig",
    "NodeCodeConfig",
    "Notice",
    "ObjectiveConfig",
    "RemoteConfig",
    "RemoteMachineConfig",
    "SourcePosition",
    "TunerConfig",
    "describe_problems",
    "load_experiment",
    "load_experiment_mapping",
]
