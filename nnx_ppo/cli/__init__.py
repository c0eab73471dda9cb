"""The command ``nnx-ppo``: train, evaluate and record policies without writing a script."""

from nnx_ppo.cli.app import main as main
from nnx_ppo.cli.restore import load_policy as load_policy

__all__ = ["load_policy", "main"]
