"""Memory is real: networks with it solve, with three seeds each, what is provably impossible without it."""

import pytest
from flax import nnx
from rich.console import Console

from benchmarks.memory import Options, cartpole, cue, repeat, returns_while_learning, table

SEEDS = (0, 1, 2)
CUE = cue(delay=10, n_iterations=30)
REPEAT = repeat(delay=2, n_iterations=30)


def final_return(task, network, seed, **options):
    return returns_while_learning(task, network, seed, **options)[-1]


@pytest.mark.parametrize("network", ["gru", "lstm", "lru", "graph"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_cue_is_remembered_for_ten_steps(network, seed):
    assert final_return(CUE, network, seed) >= 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cue_is_not_remembered_without_memory(seed):
    """Provably: tests/envs enumerates the memoryless policies, which all reach exactly 0.5."""
    # 1024 fair coins have a standard error of 0.016.
    assert final_return(CUE, "mlp", seed, n_episodes=1024) <= 0.6


@pytest.mark.parametrize("network", ["gru", "delay"])
@pytest.mark.parametrize("seed", SEEDS)
def test_symbols_of_two_steps_ago_are_named(network, seed):
    # Of 16 answers; a single one of one episode in ten may be wrong.
    assert final_return(REPEAT, network, seed) >= 15.9


@pytest.mark.parametrize("seed", SEEDS)
def test_symbols_of_two_steps_ago_are_guessed_without_memory(seed):
    # 16 fair coins in each of 1024 episodes: 8, with a standard error of 0.06.
    assert final_return(REPEAT, "mlp", seed, n_episodes=1024) <= 8.4


def test_a_pole_is_balanced_without_seeing_velocities():
    """Within 10 % of 500, which is the most that any policy gets and what a feed-forward one gets that sees them.

    Without memory it falls after 45 steps.
    """
    assert final_return(cartpole("lstm"), "lstm", seed=0) >= 450


def test_the_table_shows_each_seed_and_what_is_possible(capsys):
    options = Options(task="cue", delay=10, networks=("lru", "mlp"), seeds=2)
    assert options.chosen() == ("lru", "mlp")
    curves = {"lru": [[0.6, 1.0], [0.99, 0.98]], "mlp": [[0.5, 0.5], [0.52, 0.48]]}
    Console(width=140).print(table(options, curves, {"lru": 3.0, "mlp": 2.0}))
    text = capsys.readouterr().out
    for expected in (
        "cue, 10 steps: best possible 1, without memory 0.5",
        "1.00  0.98",
        "0.99",
        "0.50  0.48",
        "76,800",
    ):
        assert expected in text


def test_a_network_that_a_task_does_not_have():
    with pytest.raises(ValueError, match=r"this task has the networks .*'gru'.*got 'full'"):
        CUE.make_network("full", nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"this task has the networks \['full', 'lstm', 'mlp'\], got 'gru'"):
        cartpole("lstm").make_network("gru", nnx.Rngs(0))
