"""The order in which a model is called."""

from pathlib import Path

from fakes.recording_model import Line, RangeData, RecordingModel

from proctor.sdk.pytorch import Trainer, TrainingUnit


def batch(number: int) -> "list[Line]":
    """The calls for a training batch."""
    return [
        ("on_training_batch_start", number),
        ("batch_to_device", "training"),
        ("train_step", number),
        ("on_training_batch_end", number),
    ]


def validation(cycle: int) -> "list[Line]":
    """The calls for a validation of two batches."""
    steps: list[Line] = []
    for step in range(2):
        steps += [
            ("on_validation_batch_start", step),
            ("batch_to_device", "validation"),
            ("valid_step", step),
            ("on_validation_batch_end", step),
        ]
    return [
        ("eval",),
        ("on_validation_start", cycle),
        *steps,
        ("on_validation_end", cycle),
        ("train",),
        ("have_metrics_improved",),
    ]


def test_T13_by_epoch_the_hooks_come_in_their_documented_order(tmp_path: Path) -> None:
    model = RecordingModel()
    Trainer("run", total_steps=2, valid_frequency=1, chkpt_frequency=1, chkpt_root=tmp_path, use_cpu=True).fit(
        model, RangeData(2)
    )
    assert model.lines == [
        ("setup",),
        ("on_training_start",),
        ("train",),
        ("on_training_epoch_start", 0),
        *batch(1),
        *batch(2),
        ("on_training_epoch_end", 0),
        *validation(0),
        ("checkpoint",),
        ("on_training_epoch_start", 1),
        *batch(3),
        *batch(4),
        ("on_training_epoch_end", 1),
        *validation(1),
        ("checkpoint",),
        ("on_training_end",),
    ]


def test_T13_by_iteration_validations_and_checkpoints_come_between_windows(tmp_path: Path) -> None:
    model = RecordingModel()
    Trainer(
        "run",
        train_unit="iteration",
        total_steps=2,
        accumulation_steps=2,
        valid_frequency=1,
        chkpt_frequency=2,
        chkpt_root=tmp_path,
        use_cpu=True,
    ).fit(model, RangeData(3))
    assert model.lines == [
        ("setup",),
        ("on_training_start",),
        ("train",),
        ("on_training_epoch_start", 0),
        *batch(1),
        *batch(2),
        *validation(0),
        *batch(3),
        ("on_training_epoch_end", 0),
        ("on_training_epoch_start", 1),
        *batch(4),
        *validation(1),
        ("checkpoint",),
        ("on_training_end",),
    ]


def test_T13_a_test_has_hooks_of_its_own(tmp_path: Path) -> None:
    model = RecordingModel()
    Trainer("run", chkpt_root=tmp_path, use_cpu=True).test(model, RangeData(2))
    steps: list[Line] = []
    for step in range(2):
        steps += [
            ("on_testing_batch_start", step),
            ("batch_to_device", "testing"),
            ("test_step", step),
            ("on_testing_batch_end", step),
        ]
    assert model.lines == [
        ("setup",),
        ("load_for_testing",),
        ("eval",),
        ("on_testing_start",),
        *steps,
        ("on_testing_end",),
    ]


def test_a_resumed_run_loads_before_it_starts_and_enters_its_epoch_without_the_hook(tmp_path: Path) -> None:
    options = {"total_steps": 2, "chkpt_root": tmp_path, "use_cpu": True}
    Trainer("run", **options).fit(RecordingModel(stop_after=1), RangeData(2))  # type: ignore[arg-type]
    model = RecordingModel()
    Trainer("run", **options).fit(model, RangeData(2))  # type: ignore[arg-type]
    assert model.lines == [
        ("setup",),
        ("load_state_dict",),
        ("on_training_start",),
        ("train",),
        *batch(2),
        ("on_training_epoch_end", 0),
        ("on_training_epoch_start", 1),
        *batch(3),
        *batch(4),
        ("on_training_epoch_end", 1),
        ("checkpoint",),
        ("on_training_end",),
    ]


def test_the_names_of_helios_2_are_accepted() -> None:
    class Named(RangeData):
        def setup(self) -> None:
            self._add_train_phase(range(2))
            self._add_valid_dataset(range(1))
            self._add_test_dataset(range(1))

    model = RecordingModel()
    trainer = Trainer("run", train_unit=TrainingUnit.EPOCH, total_steps=1, valid_frequency=1, use_cpu=True)
    trainer.fit(model, Named())
    trainer.test(model, Named())
    assert {"valid_step", "test_step"} <= set(model.hooks)
