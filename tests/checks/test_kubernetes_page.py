"""What docs/kubernetes.md says of rights, sections and refused lines is what the code has."""

from pathlib import Path

from fakes.documentation import ROOT, documents_of

from proctor.manager.config.loading import load_experiment, load_experiment_mapping
from proctor.manager.config.services import KubernetesConfig
from proctor.training_services.job_keepers.departures import CHECKPOINT_SECONDS, COLLECT_SECONDS, CONNECT_SECONDS
from proctor.training_services.kubernetes.checks import RIGHTS, RIGHTS_FOR_EXEC
from proctor.training_services.kubernetes.pod_template import find_conflicts

PAGE = "docs/kubernetes.md"
EXPERIMENT = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python train.py",
    "trialConcurrency": 1,
    "tuner": {"name": "TPE", "classArgs": {"optimize_mode": "maximize"}},
}


def test_the_role_has_the_rights_that_are_used_and_no_others() -> None:
    [role] = [document for document in documents_of(PAGE) if document.get("kind") == "Role"]
    documented = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    used = {(right.group, right.resource, verb) for right in (*RIGHTS, *RIGHTS_FOR_EXEC) for verb in right.verbs}
    assert documented == used


def test_each_section_of_the_page_is_valid_and_gives_no_notice(tmp_path: Path) -> None:
    sections = [each for each in documents_of(PAGE) if "trainingService" in each]
    assert len(sections) > 3
    for section in sections:
        loaded = load_experiment_mapping({**EXPERIMENT, **section}, tmp_path)
        assert isinstance(loaded.config.training_service, KubernetesConfig)
        assert loaded.notices == (), section
    # the first one is a whole experiment
    assert load_experiment_mapping(documents_of(PAGE)[0], tmp_path).config.trial_gpu_number == 1


def test_the_example_is_valid_and_gives_no_notice() -> None:
    loaded = load_experiment(ROOT / "examples" / "kubernetes" / "config.yml")
    assert isinstance(loaded.config.training_service, KubernetesConfig)
    assert (loaded.config.trial_code_directory / "trial.py").is_file()
    assert loaded.notices == ()


def test_every_line_of_a_template_that_is_named_as_refused_is_refused() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    [sentence] = [part for part in text.split("\n\n") if "are refused, each with what to use" in part]
    for name in ("restartPolicy", "activeDeadlineSeconds", "terminationGracePeriodSeconds"):
        assert f"`{name}`" in sentence
        assert find_conflicts({"spec": {name: 1}})
    for name in ("command", "args", "image"):
        assert f"`{name}`" in sentence
        assert find_conflicts({"spec": {"containers": [{name: "x"}]}})


def test_the_page_names_the_times_in_which_files_are_collected() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"the manager waits up to {CONNECT_SECONDS:g} s for a keeper" in text
    assert f"and {COLLECT_SECONDS:g} s for all of them" in text
    assert f"and {CHECKPOINT_SECONDS / 60:g} minutes for all of them" in text
