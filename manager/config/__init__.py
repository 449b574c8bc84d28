"""An experiment's configuration: NNI's v2 schema (and v1, converted), read, checked and explained.

Entry: `loading.load_experiment`. Reading order: loading, document (YAML and JSON), tree (positions), version1, keys
(every NNI key), matching and names (keys compared), platforms, sections, validation; then the models: experiment,
objective, services, fields; secrets (kept out of the database), errors, and reference (docs and JSON Schema).
"""

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
