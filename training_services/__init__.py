"""Training services: where trial jobs run.

Entry: `base.TrainingService`, the contract. Reading order: base, nodes, keepers, hub_service, keeper_service, local,
remote, job_keeper_service, job_keepers, kubernetes; then registry and providers (how services and nodes are found),
capacity, errors, ssh, files, stored_checkpoints (under a URL), shared_storage (whether nodes share it),
trial_processes (for services without keepers), in_memory (for tests and simulations), testing.
"""
