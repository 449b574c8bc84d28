"""The contract of training services as tests: a new service inherits them and passes.

Entry: `suite.TrainingServiceContract`. `harness` is what the tests need from an implementation; the in-memory service
and its scripts are the example.
"""

from proctor.training_services.in_memory.scripts import (
    Final,
    Hang,
    Raw,
    Script,
    ScriptedExit,
    ScriptedReport,
    ScriptedStart,
    Step,
    Vanish,
    Wait,
)
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.testing.harness import (
    COMMANDS,
    EXIT_CODE,
    FINAL_VALUE,
    OUTSIDE,
    VALUES,
    Behavior,
    Recorder,
    ServiceHarness,
    serving,
    until_none,
)
from proctor.training_services.testing.suite import TrainingServiceContract

__all__ = [
    "COMMANDS",
    "EXIT_CODE",
    "FINAL_VALUE",
    "OUTSIDE",
    "VALUES",
    "Behavior",
    "Final",
    "Hang",
    "InMemoryPlatform",
    "InMemoryTrainingService",
    "Raw",
    "Recorder",
    "Script",
    "ScriptedExit",
    "ScriptedReport",
    "ScriptedStart",
    "ServiceHarness",
    "Step",
    "TrainingServiceContract",
    "Vanish",
    "Wait",
    "serving",
    "until_none",
]
