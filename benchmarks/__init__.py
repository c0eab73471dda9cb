"""Benchmarks of nnx-ppo."""
