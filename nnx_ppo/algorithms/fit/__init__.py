"""Whether environment, network, configuration and functions go together, found out before anything compiles."""

from nnx_ppo.algorithms.fit.check import check_fit as check_fit
from nnx_ppo.algorithms.fit.contract import FitError as FitError
