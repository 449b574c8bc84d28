"""What NNI's own package (3.0, 2.10) does when a trial calls it, as far as it matters here, without what it needs."""

from pathlib import Path

_COMMON = """\
import os
import time

def wait_for_parameters(folder):
    while not os.path.isfile(os.path.join(folder, "parameter.cfg")):
        time.sleep(3)
"""

_VERSION_3 = """\
import os
from nni.common import wait_for_parameters

_channel = None
_params = None

def _default_channel():
    global _channel
    if _channel is None:
        url = os.environ.get("NNI_TRIAL_COMMAND_CHANNEL")
        if isinstance(url, str) and url.startswith("import://"):
            from nni.runtime.trial_command_channel.base import TrialCommandChannel
            path, name = url.split("://", 1)[1].rsplit(".", 1)
            _channel = getattr(__import__(path, globals(), locals(), [name]), name)()
            if not isinstance(_channel, TrialCommandChannel):
                raise TypeError(f"{_channel} is not an instance of TrialCommandChannel")
        else:
            wait_for_parameters(os.environ["NNI_SYS_DIR"])
    return _channel

def get_next_parameter():
    global _params
    _params = _default_channel().receive_parameter()
    return None if _params is None else _params["parameters"]

def report_intermediate_result(metric):
    _send("PERIODICAL", metric)

def report_final_result(metric):
    _send("FINAL", metric)

def _send(kind, metric):
    assert _params, "nni.get_next_parameter() needs to be called before"
    _default_channel().send_metric(
        parameter_id=_params["parameter_id"], trial_job_id="", type=kind, sequence=0, value=metric
    )
"""

_BASE = """\
class TrialCommandChannel:
    def receive_parameter(self):
        raise NotImplementedError()

    def send_metric(self, type, parameter_id, trial_job_id, sequence, value):
        raise NotImplementedError()
"""

_VERSION_2 = """\
import os
from nni.common import wait_for_parameters

_sysdir = os.environ["NNI_SYS_DIR"]
if not os.path.exists(os.path.join(_sysdir, ".nni")):
    os.makedirs(os.path.join(_sysdir, ".nni"))
_metric_file = open(os.path.join(_sysdir, ".nni", "metrics"), "ab")

def get_next_parameter():
    wait_for_parameters(_sysdir)
"""


def install_nni(folder: Path, version: int) -> Path:
    """Install it into a folder; returns the folder, for PYTHONPATH."""
    package = folder / "nni"
    channel = package / "runtime" / "trial_command_channel"
    channel.mkdir(parents=True)
    (package / "common.py").write_text(_COMMON)
    (package / "__init__.py").write_text(_VERSION_3 if version == 3 else _VERSION_2)
    (package / "runtime" / "__init__.py").write_text("")
    (channel / "__init__.py").write_text("")
    (channel / "base.py").write_text(_BASE)
    return folder
