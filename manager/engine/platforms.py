"""The machines or the cluster of a configuration without an experiment: looked at hop by hop, or cleaned."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from proctor.manager.engine import creation
from proctor.manager.engine.supervisor import ExperimentSupervisor
from proctor.manager.errors import BadRequest, Unavailable
from proctor.manager.settings import Home
from proctor.training_services.errors import UnknownPlatform
from proctor.training_services.providers import CheckStep, CheckVerdict, NodeProvider, Provider, Providers

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig

LEAVING = "leaving"
"""The name of the step of a machine that a stopped experiment is leaving."""
LEAVING_SECONDS = 10.0
"""How long one request waits for that. Who has more time asks again."""

_SECRETS = "training_service.machine_list"


@dataclass(frozen=True)
class _Asked:
    """The machines that are asked about, and who knows them."""

    provider: Provider
    settings: dict[str, Any]
    secrets: dict[str, str]
    trial_gpu_number: int | None


class Platforms:
    """Asks the provider of a configuration's platform."""

    def __init__(self, home: Home, providers: Providers | None, supervisor: ExperimentSupervisor) -> None:
        self._home = home
        self._providers = providers
        self._supervisor = supervisor

    async def check(
        self, config: Mapping[str, Any], directory: str, *, handover: str | None = None, machine: int | None = None
    ) -> Sequence[CheckStep]:
        """Try every hop to every machine, or to one (by its place in the list, from 0). Nothing stays there.

        Raises BadRequest for a configuration that is not valid or names no machines, Unavailable.
        """
        asked = await self._read(config, directory, handover, machine)
        return await asked.provider.inspect(asked.settings, asked.secrets, trial_gpu_number=asked.trial_gpu_number)

    async def preview(self, config: "ExperimentConfig", secrets: Mapping[str, str]) -> list[str]:
        """What to notice about the platform of a new experiment. Raises BadRequest if its trials could never run."""
        section = config.training_service
        if self._providers is None or section.platform == "local":
            return []
        try:
            provider = self._providers.get(section.platform)
        except (UnknownPlatform, ImportError):  # the experiment's start says so
            return []
        settings = section.model_dump(mode="json", by_alias=False)
        steps = await provider.preview(settings, secrets, trial_gpu_number=config.trial_gpu_number)
        texts = {step: "; ".join(filter(None, (f"{step.machine}: {step.found}", step.advice))) for step in steps}
        if refused := next((step for step in steps if step.verdict is CheckVerdict.FAIL), None):
            raise BadRequest(f"the experiment cannot run on platform {section.platform}: {texts[refused]}")
        return [texts[step] for step in steps if step.verdict is CheckVerdict.NOTE]

    async def render(self, config: Mapping[str, Any], directory: str) -> Sequence[Mapping[str, Any]]:
        """The objects that an experiment and its first trial would be. Raises BadRequest for a configuration that is
        not valid, or whose trials are no objects, Unavailable."""
        loaded = await asyncio.to_thread(creation.check, config, directory, self._home.path)
        section = loaded.config.training_service
        found: Sequence[Mapping[str, Any]] = ()
        if section.platform != "local":
            settings = section.model_dump(mode="json", by_alias=False)
            provider = self._provider(section.platform)
            found = await provider.render(settings, trial_gpu_number=loaded.config.trial_gpu_number)
        if not found:
            found_platform = f"this experiment's platform is {section.platform}"
            raise BadRequest(f"--render works with platform kubernetes only; {found_platform}")
        return found

    async def clean(
        self, config: Mapping[str, Any], directory: str, *, handover: str | None = None, machine: int | None = None
    ) -> Sequence[CheckStep]:
        """Remove everything of this manager from the machines, or from one. Those that an experiment uses are left
        alone. An experiment that is being stopped, or was stopped and still leaves them, is waited for a while; a
        machine that it has not left by then has a failed step LEAVING that says so. Raises as `check`."""
        asked = await self._read(config, directory, handover, machine)
        if not isinstance(asked.provider, NodeProvider):
            return await asked.provider.clean(asked.settings, asked.secrets)
        node_ids = asked.provider.node_ids_of(asked.settings)
        await self._supervisor.until_left(node_ids, LEAVING_SECONDS)
        leaving = [self._supervisor.leaving((node_id,)) for node_id in node_ids]
        steps = await asked.provider.clean(asked.settings, asked.secrets)
        return [_step(step, clauses) for step, clauses in zip(steps, leaving, strict=True)]

    async def _read(
        self, config: Mapping[str, Any], directory: str, handover: str | None, machine: int | None
    ) -> "_Asked":
        handed = creation.take_handover(self._home, handover)
        loaded = await asyncio.to_thread(creation.check, config, directory, self._home.path)
        secrets = {**loaded.secrets, **handed.secrets}
        section = loaded.config.training_service
        provider = self._provider(section.platform)
        creation.check_secrets(loaded.config, secrets)
        settings: dict[str, Any] = section.model_dump(mode="json", by_alias=False)
        asked = _Asked(provider, settings, secrets, loaded.config.trial_gpu_number)
        if machine is None:
            return asked
        from proctor.manager.config.services import RemoteConfig  # loaded when it was checked

        if not isinstance(section, RemoteConfig):
            raise BadRequest(f"platform {section.platform} has no machines to choose from; leave out `machine`")
        if not 0 <= machine < len(section.machine_list):
            raise BadRequest(f"machine: expected 0 to {len(section.machine_list) - 1}, found {machine}")
        chosen = {**settings, "machine_list": [settings["machine_list"][machine]]}
        return replace(asked, settings=chosen, secrets=_secrets_of(secrets, machine))

    def _provider(self, platform: str) -> Provider:
        if self._providers is None:
            raise Unavailable("this manager reaches no machines")
        try:
            return self._providers.get(platform)
        except UnknownPlatform as error:
            raise BadRequest(str(error)) from error
        except ImportError as error:
            raise Unavailable(f"platform {platform} cannot be used: {error}") from error


def _step(step: CheckStep, leaving: Mapping[str, str]) -> CheckStep:
    """What came of a machine: where it was left alone because of experiments that are leaving it, that."""
    if step.verdict is not CheckVerdict.FAIL or not leaving:
        return step
    return CheckStep(
        step.machine,
        LEAVING,
        CheckVerdict.FAIL,
        "; ".join(leaving.values()),
        "try again after it has released the node",
    )


def _secrets_of(secrets: Mapping[str, str], machine: int) -> dict[str, str]:
    """The secrets of one machine, as those of a list that has only this one."""
    own = f"{_SECRETS}.{machine}."
    return {f"{_SECRETS}.0.{path.removeprefix(own)}": each for path, each in secrets.items() if path.startswith(own)}
