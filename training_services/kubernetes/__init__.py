"""Trials as plain Jobs of a Kubernetes cluster, each under a keeper of its own in the Job's pod.

Entry: `service`. Reading order: service (the platform methods of `JobKeeperService`), manifests (the objects of an
experiment and of a trial job), objects (creating them), pod_template (merging the user's `podTemplate`), namespaces
(watching Jobs, pods and warnings), pods (what the state of a pod means), relay (for pods that cannot reach the
manager), client (the API server; the only module that imports the library), provider (what the experiments of a manager
share), checks (for `create` and `proctor doctor`), probing (for `proctor doctor`), settings.
"""
