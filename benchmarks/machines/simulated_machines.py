"""`python -m benchmarks.machines.simulated_machines`: a manager whose platform `remote` has no machines behind it.

Nodes, hub, engine, store and HTTP are the real ones; only what brings keepers to machines over SSH is left out. The
keepers are played by `simulated_keepers`, which know the secret.
"""

import sys
from dataclasses import replace
from typing import Any

from proctor.manager.__main__ import main
from proctor.training_services import registry
from proctor.training_services.base import TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.keeper_service import KeeperTrainingService
from proctor.training_services.keepers.launches import write_launch
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Launch

SECRET = "simulated"


class SimulatedService(KeeperTrainingService):
    """Jobs for keepers that only say that they run them."""

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._nodes = tuple(str(machine["host"]) for machine in context.settings["machine_list"])
        for node_id in self._nodes:
            context.pool.add(node_id, "remote")
            context.hub.add_node(node_id, SECRET, lost_after_seconds=600.0)

    def node_ids(self) -> tuple[str, ...]:
        return self._nodes

    def check(self, form: TrialJobForm) -> None:
        """Everything can be simulated."""

    def launch(self, form: TrialJobForm) -> Launch:
        launch = write_launch(form, platform="remote", owner="nobody", rules=GpuRules())
        return replace(launch, directory=f"jobs/{form.job_id}", environment_file=None)

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        raise KeyError(key)

    async def get_cluster_metadata(self, key: str) -> Any:
        raise KeyError(key)


if __name__ == "__main__":
    registry.BUILT_IN = {**registry.BUILT_IN, "remote": "benchmarks.machines.simulated_machines:SimulatedService"}
    sys.exit(main())
