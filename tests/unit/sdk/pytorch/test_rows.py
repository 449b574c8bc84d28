"""Every behavior that the trainer promises has a row, and every row a test that is called after it.

The rows are those of the behaviors of a reproducible trainer, in the groups seeding (S), data (D), checkpoints (C),
counting and stopping (T), devices and logs (X), proofs (R). A test of the rows D9 and D10 is called
`test_D9_D10_…`.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parents[3]
UNIT = "unit/sdk/pytorch"
INTEGRATION = "integration/sdk/pytorch"

# Where the test of each row is; it may have more elsewhere.
ROWS: "dict[str, str]" = {
    "S1": f"{UNIT}/reproducibility/test_seeding.py",
    "S2": f"{UNIT}/reproducibility/test_seeding.py",
    "S3": f"{UNIT}/test_trainer.py",
    "S4": f"{UNIT}/reproducibility/test_seeding.py",
    "S5": f"{UNIT}/reproducibility/test_seeding.py",
    "S6": f"{UNIT}/reproducibility/test_seeding.py",
    "S7": f"{UNIT}/test_trainer.py",
    "S8": f"{UNIT}/test_trainer.py",
    "S9": f"{UNIT}/data/test_loaders.py",
    "S10": f"{UNIT}/data/test_data.py",
    "S11": f"{UNIT}/test_trainer.py",
    "D1": f"{UNIT}/data/test_samplers.py",
    "D2": f"{UNIT}/data/test_samplers.py",
    "D3": f"{UNIT}/data/test_samplers.py",
    "D4": f"{UNIT}/data/test_samplers.py",
    "D5": f"{UNIT}/data/test_data.py",
    "D6": f"{UNIT}/data/test_data.py",
    "D7": f"{UNIT}/data/test_loaders.py",
    "D8": f"{UNIT}/data/test_loaders.py",
    "D9": f"{UNIT}/test_resume.py",
    "D10": f"{UNIT}/test_resume.py",
    "D11": f"{UNIT}/test_resume.py",
    "D12": f"{INTEGRATION}/test_kill_matrix.py",
    "D13": f"{UNIT}/data/test_loaders.py",
    "D14": f"{UNIT}/data/test_loaders.py",
    "D15": f"{UNIT}/data/test_data.py",
    "D16": f"{UNIT}/test_resume.py",
    "D17": f"{UNIT}/data/test_data.py",
    "C1": f"{UNIT}/test_settings.py",
    "C2": f"{UNIT}/checkpoints/test_checkpoint_folder.py",
    "C3": f"{UNIT}/checkpoints/test_checkpoint_folder.py",
    "C4": f"{UNIT}/test_resuming.py",
    "C5": f"{UNIT}/test_migration.py",
    "C6": f"{UNIT}/test_resuming.py",
    "C7": f"{UNIT}/test_resuming.py",
    "C8": f"{UNIT}/checkpoints/test_checkpoint_folder.py",
    "C9": f"{UNIT}/checkpoints/test_torn_checkpoints.py",
    "C10": f"{UNIT}/checkpoints/test_kept_checkpoints.py",
    "C11": f"{UNIT}/checkpoints/test_serialization.py",
    "C12": f"{UNIT}/checkpoints/test_serialization.py",
    "C13": f"{UNIT}/test_migration.py",
    "C14": f"{UNIT}/test_migration.py",
    "C15": f"{UNIT}/test_resuming.py",
    "C16": f"{UNIT}/test_resuming.py",
    "C17": f"{UNIT}/test_stopping.py",
    "C18": f"{UNIT}/test_plugins.py",
    "T1": f"{UNIT}/test_settings.py",
    "T2": f"{UNIT}/test_settings.py",
    "T3": f"{UNIT}/test_state.py",
    "T4": f"{UNIT}/test_state.py",
    "T5": f"{UNIT}/test_state.py",
    "T6": f"{UNIT}/test_stopping.py",
    "T7": f"{UNIT}/test_stopping.py",
    "T8": f"{UNIT}/test_settings.py",
    "T9": f"{UNIT}/test_stopping.py",
    "T10": f"{UNIT}/test_stopping.py",
    "T11": f"{UNIT}/test_stopping.py",
    "T12": f"{UNIT}/test_resume.py",
    "T13": f"{UNIT}/test_hooks.py",
    "T14": f"{UNIT}/data/test_loaders.py",
    "T15": f"{UNIT}/test_averages.py",
    "T16": f"{UNIT}/test_precision.py",
    "T17": f"{UNIT}/test_precision.py",
    "T18": f"{UNIT}/test_precision.py",
    "X1": f"{UNIT}/distributed/test_devices.py",
    "X2": f"{INTEGRATION}/test_processes.py",
    "X3": f"{INTEGRATION}/test_processes.py",
    "X4": f"{UNIT}/distributed/test_distributed.py",
    "X5": f"{UNIT}/distributed/test_distributed.py",
    "X6": f"{INTEGRATION}/test_processes.py",
    "X7": f"{UNIT}/test_trainer.py",
    "X8": f"{UNIT}/reproducibility/test_kernels.py",
    "X9": f"{UNIT}/callbacks/test_logs.py",
    "X10": f"{UNIT}/callbacks/test_logs.py",
    "X11": f"{UNIT}/checkpoints/test_history.py",
    "X12": f"{UNIT}/callbacks/test_logs.py",
    "X13": f"{UNIT}/callbacks/test_progress.py",
    "X14": f"{UNIT}/test_plugins.py",
    "R1": f"{INTEGRATION}/test_kill_matrix.py",
    "R2": f"{INTEGRATION}/test_kill_matrix.py",
    "R3": f"{INTEGRATION}/test_kill_matrix.py",
    "R4": f"{INTEGRATION}/test_kill_matrix.py",
    "R5": f"{INTEGRATION}/test_kill_matrix.py",
    "R6": f"{UNIT}/reproducibility/test_fingerprint.py",
    "R7": f"{INTEGRATION}/test_processes.py",
}
GROUPS = {"S": 11, "D": 17, "C": 18, "T": 18, "X": 14, "R": 7}


def test_every_row_is_listed_and_has_a_test_that_is_called_after_it() -> None:
    assert set(ROWS) == {f"{group}{number}" for group, last in GROUPS.items() for number in range(1, last + 1)}
    texts = {path: (TESTS / path).read_text() for path in set(ROWS.values())}
    called = {row: rf"^(?:async )?def test_(?:[A-Z]\d+_)*{row}_\w+" for row in ROWS}
    assert [row for row, path in ROWS.items() if not re.search(called[row], texts[path], re.MULTILINE)] == []
