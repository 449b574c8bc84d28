"""NNI 3's own package as a trial of Proctor: the command channel that it loads by `NNI_TRIAL_COMMAND_CHANNEL`.

Normally a trial imports the stand-in for `nni`. Where another `nni` comes first on its path, NNI 3.0 asks this channel
for parameters and hands it every report, so the trial runs all the same. Nothing else imports it.
"""

from typing import Any

from nni.runtime.trial_command_channel.base import TrialCommandChannel

from proctor.sdk.trial import get_next_parameter, report_final_result, report_intermediate_result


class ProctorChannel(TrialCommandChannel):  # type: ignore[misc]
    """Parameters and metrics of this trial."""

    def receive_parameter(self) -> "dict[str, Any]":
        """The trial's parameters, in NNI's shape."""
        return {"parameter_id": 0, "parameters": get_next_parameter()}

    def send_metric(
        self, type: str, parameter_id: "int | None", trial_job_id: str, sequence: int, value: "Any"
    ) -> None:
        """Report a metric; `type` is PERIODICAL or FINAL."""
        report = report_final_result if type == "FINAL" else report_intermediate_result
        report(value)
