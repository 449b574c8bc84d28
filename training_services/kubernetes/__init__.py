"""Trials as plain Jobs of a Kubernetes cluster, each under a keeper of its own in the Job's pod.

Entry: `service`. Reading order: service (what `JobKeeperService` asks of a platform), manifests (what is created for an
experiment and for a job), objects (creating it), pod_template (the user's own lines), namespaces (what the cluster
says, followed by watches), pods (what the state of a pod means), relay (for pods that do not reach the manager), client
(the API server; the only module that imports the library), provider (what the experiments of a manager share), checks
and probing (for `proctor doctor`), settings.
"""
