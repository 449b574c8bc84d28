"""The control side of the SDK: what starts, watches and reads experiments; loaded on first use.

    from proctor.sdk.client import Client, Experiment

Entry: `experiment.Experiment`. Reading order: experiment, config, credentials, results, client (REST as Python calls),
with its parts `result_calls` and `trial_calls`, transport, connections (HTTP), events (the stream of changes), logs,
home (where a manager keeps its things), code_files, flattening (what nested values are called in tables), errors.
Trials never import this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client as Client
    from proctor.sdk.client.config import AlgorithmConfig as AlgorithmConfig
    from proctor.sdk.client.config import CustomAlgorithmConfig as CustomAlgorithmConfig
    from proctor.sdk.client.config import ExperimentConfig as ExperimentConfig
    from proctor.sdk.client.config import LocalConfig as LocalConfig
    from proctor.sdk.client.config import NodeCodeConfig as NodeCodeConfig
    from proctor.sdk.client.config import ObjectiveConfig as ObjectiveConfig
    from proctor.sdk.client.config import RemoteConfig as RemoteConfig
    from proctor.sdk.client.config import RemoteMachineConfig as RemoteMachineConfig
    from proctor.sdk.client.config import RunMode as RunMode
    from proctor.sdk.client.experiment import Experiment as Experiment
    from proctor.sdk.client.results import Results as Results
    from proctor.sdk.client.results import TrialHyperParameters as TrialHyperParameters
    from proctor.sdk.client.results import TrialJob as TrialJob
    from proctor.sdk.client.results import TrialMetricData as TrialMetricData
    from proctor.sdk.client.results import TrialResult as TrialResult

_HOMES = {
    "Client": "client",
    "Experiment": "experiment",
    "Results": "results",
    "AlgorithmConfig": "config",
    "CustomAlgorithmConfig": "config",
    "ExperimentConfig": "config",
    "LocalConfig": "config",
    "NodeCodeConfig": "config",
    "ObjectiveConfig": "config",
    "RemoteConfig": "config",
    "RemoteMachineConfig": "config",
    "RunMode": "config",
    "TrialHyperParameters": "results",
    "TrialJob": "results",
    "TrialMetricData": "results",
    "TrialResult": "results",
}

__all__ = [
    "AlgorithmConfig",
    "Client",
    "CustomAlgorithmConfig",
    "Experiment",
    "ExperimentConfig",
    "LocalConfig",
    "NodeCodeConfig",
    "ObjectiveConfig",
    "RemoteConfig",
    "RemoteMachineConfig",
    "Results",
    "RunMode",
    "TrialHyperParameters",
    "TrialJob",
    "TrialMetricData",
    "TrialResult",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"proctor.sdk.client has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"proctor.sdk.client.{_HOMES[name]}"), name)
