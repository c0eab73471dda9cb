"""Population graphs: networks drawn as populations and connections, with delays and feedback."""

from nnx_ppo.networks.graph.drawing import draw_graph as draw_graph
from nnx_ppo.networks.graph.drawing import to_graphviz as to_graphviz
from nnx_ppo.networks.graph.graph import PopulationGraph as PopulationGraph
from nnx_ppo.networks.graph.population import Population as Population
from nnx_ppo.networks.graph.topology import Edge as Edge
from nnx_ppo.networks.graph.topology import Node as Node
from nnx_ppo.networks.graph.topology import Topology as Topology
from nnx_ppo.networks.graph.topology import TopologyError as TopologyError

__all__ = ["Edge", "Node", "Population", "PopulationGraph", "Topology", "TopologyError", "draw_graph", "to_graphviz"]
