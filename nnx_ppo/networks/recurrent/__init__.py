"""Recurrent layers: the carry is the hidden state, and a whole sequence costs one input projection and one scan."""

from nnx_ppo.networks.recurrent.ctrnn import CTRNN as CTRNN
from nnx_ppo.networks.recurrent.gru import GRU as GRU
from nnx_ppo.networks.recurrent.lru import LRU as LRU
from nnx_ppo.networks.recurrent.lstm import LSTM as LSTM
from nnx_ppo.networks.recurrent.lstm import fused_kernels as fused_kernels

__all__ = ["CTRNN", "GRU", "LRU", "LSTM", "fused_kernels"]
