"""Search spaces: what a tuner may propose, NNI's ten types with their sampling semantics."""

from proctor.sdk.space.choices import Branch, Choice, NestedChoice
from proctor.sdk.space.parameters import Normal, Parameter, RandInt, Uniform
from proctor.sdk.space.problems import SearchSpaceError, SpaceProblem
from proctor.sdk.space.reading import ARGUMENTS, parse_search_space
from proctor.sdk.space.search_space import SearchSpace

__all__ = [
    "ARGUMENTS",
    "Branch",
    "Choice",
    "NestedChoice",
    "Normal",
    "Parameter",
    "RandInt",
    "SearchSpace",
    "SearchSpaceError",
    "SpaceProblem",
    "Uniform",
    "parse_search_space",
]
