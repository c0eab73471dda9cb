"""Networks by name are sized to the environment; a user's function is imported and checked."""

import jax
import pytest
from flax import nnx

from nnx_ppo.algorithms.config import PPOConfig
from nnx_ppo.algorithms.fit import check_fit
from nnx_ppo.cli.networks import NetworkConfig, build_network
from nnx_ppo.envs import make_env
from nnx_ppo.networks import LSTM, named_modules

SMALL = {"actor_hidden_sizes": (4,), "critic_hidden_sizes": (3,), "hidden_size": 5}


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize("env", ["probe:action_reward", "probe:discrete_action_reward", "gymnax:CartPole-v1"])
def test_built_in_networks_fit_the_environment(kind, env):
    env = make_env(env)
    network = build_network(NetworkConfig(kind=kind, **SMALL), env, seed=0)
    check_fit(env, network, PPOConfig())
    has_memory = any(isinstance(module, LSTM) for module in named_modules(network).values())
    assert has_memory == (kind == "lstm")


def test_every_field_has_an_effect():
    env = make_env("probe:action_reward")

    def leaves(**fields):
        network = build_network(NetworkConfig(kind="lstm", **{**SMALL, **fields}), env, seed=0)
        graphdef, state = nnx.split(network)
        return str(graphdef), [str(x.shape) for x in jax.tree.leaves(state)]

    changes = {
        "actor_hidden_sizes": (4, 4),
        "critic_hidden_sizes": (2,),
        "hidden_size": 6,
        "activation": "tanh",
        "normalize_obs": False,
        "entropy_weight": 0.5,
    }
    base = leaves()
    for field, value in changes.items():
        assert leaves(**{field: value}) != base, field


def test_seed_decides_the_parameters():
    env = make_env("probe:action_reward")
    a, b, c = (nnx.state(build_network(NetworkConfig(**SMALL), env, seed), nnx.Param) for seed in (0, 0, 1))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))
    assert not jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, c))


def test_a_users_function_is_called_with_environment_and_rngs(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(
        "from nnx_ppo.networks import make_mlp_actor_critic\n"
        "def small(env, rngs):\n"
        "    return make_mlp_actor_critic(env.observation_size, env.action_size, [7], [7], rngs)\n"
        "def wrong(env, rngs):\n"
        "    return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make_env("probe:action_reward")
    network = build_network(NetworkConfig(kind="my_networks:small"), env, seed=0)
    assert network[1]["action"][0].linear.kernel.shape[-1] == 7
    with pytest.raises(ValueError, match=r"wrong\(env, rngs\) must return a StatefulModule, got int"):
        build_network(NetworkConfig(kind="my_networks:wrong"), env, seed=0)
    with pytest.raises(ValueError, match=r"has no function 'smal'. Did you mean small"):
        build_network(NetworkConfig(kind="my_networks:smal"), env, seed=0)
    with pytest.raises(ValueError, match="no module 'no_such_module'"):
        build_network(NetworkConfig(kind="no_such_module:f"), env, seed=0)


def test_unknown_kind_and_bad_sizes_are_refused():
    with pytest.raises(ValueError, match=r"one of mlp, lstm or package.module:function, got 'gru2'"):
        NetworkConfig(kind="gru2")
    with pytest.raises(ValueError, match="at least 1"):
        NetworkConfig(actor_hidden_sizes=(4, 0))


def test_a_tree_of_actions_needs_a_users_network():
    with pytest.raises(ValueError, match=r"one action head.*\['look', 'move'\].*package.module:function"):
        build_network(NetworkConfig(), make_env("probe:tree"), seed=0)
