"""The base class of a custom tuner."""

from proctor.sdk.tuner import Tuner

__all__ = ["Tuner"]
