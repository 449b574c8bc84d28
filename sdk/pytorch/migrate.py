"""`python -m proctor.sdk.pytorch.migrate`: the command of `proctor.sdk.compat.helios_checkpoints`.

That stays where Proctor is installed; trials on other machines have no use for it.
"""

from runpy import run_module

if __name__ == "__main__":
    run_module("proctor.sdk.compat.helios_checkpoints", run_name="__main__")
