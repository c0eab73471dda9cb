"""Stateful networks: layers, containers and ready-made actor-critics; knows nothing of environments or PPO."""

from nnx_ppo.networks.activations import ACTIVATIONS as ACTIVATIONS
from nnx_ppo.networks.activations import resolve_activation as resolve_activation
from nnx_ppo.networks.adapter import PPOAdapter as PPOAdapter
from nnx_ppo.networks.containers import Concat as Concat
from nnx_ppo.networks.containers import Map as Map
from nnx_ppo.networks.containers import Merge as Merge
from nnx_ppo.networks.containers import Parallel as Parallel
from nnx_ppo.networks.containers import Sequential as Sequential
from nnx_ppo.networks.containers import Splitter as Splitter
from nnx_ppo.networks.delay import Delay as Delay
from nnx_ppo.networks.factories import make_lstm_actor_critic as make_lstm_actor_critic
from nnx_ppo.networks.factories import make_mlp as make_mlp
from nnx_ppo.networks.factories import make_mlp_actor_critic as make_mlp_actor_critic
from nnx_ppo.networks.factories import make_mlp_layers as make_mlp_layers
from nnx_ppo.networks.feedforward import Dense as Dense
from nnx_ppo.networks.forward_model import ForwardModel as ForwardModel
from nnx_ppo.networks.graph import Edge as Edge
from nnx_ppo.networks.graph import Node as Node
from nnx_ppo.networks.graph import Population as Population
from nnx_ppo.networks.graph import PopulationGraph as PopulationGraph
from nnx_ppo.networks.graph import Topology as Topology
from nnx_ppo.networks.graph import TopologyError as TopologyError
from nnx_ppo.networks.graph import draw_graph as draw_graph
from nnx_ppo.networks.graph import to_graphviz as to_graphviz
from nnx_ppo.networks.interventions import with_interventions as with_interventions
from nnx_ppo.networks.masked import FixedWeights as FixedWeights
from nnx_ppo.networks.masked import MaskedDense as MaskedDense
from nnx_ppo.networks.naming import describe as describe
from nnx_ppo.networks.naming import flatten_activations as flatten_activations
from nnx_ppo.networks.naming import named_modules as named_modules
from nnx_ppo.networks.naming import parse_path as parse_path
from nnx_ppo.networks.naming import path_string as path_string
from nnx_ppo.networks.naming import unflatten_activations as unflatten_activations
from nnx_ppo.networks.noise import GaussianNoise as GaussianNoise
from nnx_ppo.networks.noise import NoiseLayer as NoiseLayer
from nnx_ppo.networks.normalizer import Normalizer as Normalizer
from nnx_ppo.networks.normalizer import NormalizerStatistics as NormalizerStatistics
from nnx_ppo.networks.recording import ACTIVATION_KEY as ACTIVATION_KEY
from nnx_ppo.networks.recording import Recorder as Recorder
from nnx_ppo.networks.recording import extract_activations as extract_activations
from nnx_ppo.networks.recording import with_recording as with_recording
from nnx_ppo.networks.recurrent import CTRNN as CTRNN
from nnx_ppo.networks.recurrent import GRU as GRU
from nnx_ppo.networks.recurrent import LRU as LRU
from nnx_ppo.networks.recurrent import LSTM as LSTM
from nnx_ppo.networks.sampling_layers import ActionSampler as ActionSampler
from nnx_ppo.networks.sampling_layers import CategoricalSampler as CategoricalSampler
from nnx_ppo.networks.sampling_layers import NormalTanhSampler as NormalTanhSampler
from nnx_ppo.networks.types import PPONetworkOutput as PPONetworkOutput
from nnx_ppo.networks.types import StatefulModule as StatefulModule
from nnx_ppo.networks.types import StatefulModuleOutput as StatefulModuleOutput
from nnx_ppo.networks.types import reset_where as reset_where
from nnx_ppo.networks.utils import Filter as Filter
from nnx_ppo.networks.utils import Flattener as Flattener
from nnx_ppo.networks.utils import Scale as Scale
from nnx_ppo.networks.variational import AR1VariationalBottleneck as AR1VariationalBottleneck
from nnx_ppo.networks.variational import VariationalBottleneck as VariationalBottleneck

__all__ = [
    "ACTIVATIONS",
    "ACTIVATION_KEY",
    "AR1VariationalBottleneck",
    "ActionSampler",
    "CTRNN",
    "CategoricalSampler",
    "Concat",
    "Delay",
    "Dense",
    "Edge",
    "Filter",
    "FixedWeights",
    "Flattener",
    "ForwardModel",
    "GRU",
    "GaussianNoise",
    "LRU",
    "LSTM",
    "Map",
    "MaskedDense",
    "Merge",
    "Node",
    "NoiseLayer",
    "NormalTanhSampler",
    "Normalizer",
    "NormalizerStatistics",
    "PPOAdapter",
    "PPONetworkOutput",
    "Parallel",
    "Population",
    "PopulationGraph",
    "Recorder",
    "Scale",
    "Sequential",
    "Splitter",
    "StatefulModule",
    "StatefulModuleOutput",
    "Topology",
    "TopologyError",
    "VariationalBottleneck",
    "describe",
    "draw_graph",
    "extract_activations",
    "flatten_activations",
    "make_lstm_actor_critic",
    "make_mlp",
    "make_mlp_actor_critic",
    "make_mlp_layers",
    "named_modules",
    "parse_path",
    "path_string",
    "reset_where",
    "resolve_activation",
    "to_graphviz",
    "unflatten_activations",
    "with_interventions",
    "with_recording",
]
