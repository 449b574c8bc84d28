"""`nni.experiment`: NNI's way to start experiments from Python, answered by Proctor's control side.

Entry: `import nni.experiment`; every name is that of `proctor.sdk.client`. `config` has the same names again, where NNI
has its configuration classes.
"""

from typing import Any

_NOT_OFFERED = {
    "AmlConfig": "Azure ML",
    "AzureBlobConfig": "Azure Blob storage",
    "DlcConfig": "Alibaba DLC",
    "FrameworkControllerConfig": "FrameworkController",
    "FrameworkControllerRoleConfig": "FrameworkController",
    "K8sAzureStorageConfig": "Azure Files",
    "K8sNfsConfig": "an NFS mount of Kubernetes",
    "KubeflowConfig": "Kubeflow",
    "KubeflowRoleConfig": "Kubeflow",
    "NfsConfig": "NNI's shared storage",
    "OpenpaiConfig": "OpenPAI",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _NOT_OFFERED:
        raise ImportError(
            f"nni.experiment.{name}: {_NOT_OFFERED[name]} is not offered; use 'local', 'remote' or 'kubernetes'"
        )
    try:
        import proctor.sdk.client as client

        return getattr(client, name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"nni.experiment.{name} starts and controls experiments and needs the whole proctor package with its "
            f"dependencies ({error}); inside a trial only the trial's own calls are there. Install proctor in the "
            "environment that runs this script."
        ) from error
    except AttributeError as error:
        raise AttributeError(f"module 'nni.experiment' has no attribute {name!r}") from error
