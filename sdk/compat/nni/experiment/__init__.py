"""`nni.experiment`: NNI's way to start experiments from Python, answered by Proctor's control side."""

from importlib import import_module

_HOMES = ("proctor.sdk.client.experiment", "proctor.sdk.client.nni_config")
_NOT_OFFERED = {
    "AmlConfig": "Azure ML",
    "AzureBlobConfig": "Azure Blob storage",
    "DlcConfig": "Alibaba DLC",
    "FrameworkControllerConfig": "FrameworkController",
    "K8sAzureStorageConfig": "Azure Files",
    "KubeflowConfig": "Kubeflow",
    "OpenpaiConfig": "OpenPAI",
}


def __getattr__(name: str) -> object:
    if name in _NOT_OFFERED:
        raise ImportError(f"nni.experiment.{name}: {_NOT_OFFERED[name]} is not offered; use 'local' or 'remote'")
    if name.startswith("_"):
        raise AttributeError(name)
    for home in _HOMES:
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"nni.experiment.{name} starts and controls experiments and needs the whole proctor package "
                f"({error}); inside a trial only the trial's own calls are there"
            ) from error
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'nni.experiment' has no attribute {name!r}")
