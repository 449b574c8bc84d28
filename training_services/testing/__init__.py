"""The contract of training services as tests: a new service inherits them and passes.

Entry: `suite.TrainingServiceContract`. `harness` is what the tests need from an implementation.
"""

from proctor.training_services.testing.suite import (
    COMMANDS,
    EXIT_CODE,
    FINAL_VALUE,
    OUTSIDE,
    VALUES,
    Behaviour,
    Final,
    Hang,
    InMemoryPlatform,
    InMemoryTrainingService,
    Raw,
    Recorder,
    Script,
    ScriptedExit,
    ScriptedReport,
    ScriptedStart,
    ServiceHarness,
    Step,
    TrainingServiceContract,
    Vanish,
    Wait,
    serving,
)

__all__ = [
    "COMMANDS",
    "EXIT_CODE",
    "FINAL_VALUE",
    "OUTSIDE",
    "VALUES",
    "Behaviour",
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
]
