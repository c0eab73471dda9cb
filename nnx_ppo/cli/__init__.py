"""The command ``nnx-ppo``: train, evaluate and record policies without writing a script."""

from nnx_ppo.cli.app import main as main

__all__ = ["main"]
