"""The base class of a custom assessor and its answer."""

from proctor.sdk.assessor import Assessor, AssessResult

__all__ = ["AssessResult", "Assessor"]
