"""Search spaces: what a tuner may propose, NNI's ten types with their sampling semantics.

Entry: `parsing.parse_search_space`. Reading order: parsing, search_space, parameters (numeric ones), choices (which may
hold a search space).
"""

from proctor.sdk.space.choices import Branch, Choice, NestedChoice
from proctor.sdk.space.parameters import Normal, Parameter, RandInt, SearchSpaceError, SpaceProblem, Uniform
from proctor.sdk.space.parsing import ARGUMENTS, parse_search_space
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
