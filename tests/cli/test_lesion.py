"""nnx-ppo lesion, from a run made once: the ranking equals that of the library, on the screen and in files."""

import csv
import json

import pytest

from nnx_ppo.cli import main
from nnx_ppo.cli.restore import restore_run
from nnx_ppo.recordings import lesion_study
from tests.cli.test_commands import TINY, fails


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    main(["train", *TINY, "--out", str(path), "--ppo.total-steps", "32"])
    return path


def test_units(run, tmp_path, capsys):
    out = tmp_path / "new" / "units.csv"
    words = ["--units", "memory", "--episodes", "3", "--seed", "4", "--top", "2", "--out", str(out)]
    main(["lesion", str(run), *words])
    printed = capsys.readouterr()
    _, config, env, network = restore_run(run)
    length = config.train.eval.max_episode_length
    study = lesion_study(env, network, units_of="memory", n_episodes=3, max_episode_length=length, key=4)
    header, intact, *rows = csv.reader(out.read_text().splitlines())
    assert header == ["layer", "unit", "episode_reward", "drop", "standard_error"]
    assert intact == ["", "", str(study.episode_reward), "0.0", str(study.standard_error)]
    assert [(row[0], int(row[1]), float(row[3])) for row in rows] == [
        (lesion.path, lesion.unit, lesion.drop) for lesion in study.lesions
    ]
    assert f"memory unit {study.lesions[0].unit}" in printed.out
    assert f"memory unit {study.lesions[2].unit}" not in printed.out
    assert "2 with smaller drops are not shown" in " ".join(printed.out.split())
    assert "Compiling the evaluation" in printed.err


def test_layers(run, tmp_path, capsys):
    out = tmp_path / "layers.json"
    main(["lesion", str(run), "--episodes", "3", "--exclude", "heads/value/*", "--out", str(out)])
    content = json.loads(out.read_text())
    assert {row["layer"] for row in content["lesions"]} == {"normalizer", "memory", "heads/action/0", "heads/action/1"}
    drops = [row["drop"] for row in content["lesions"]]
    assert drops == sorted(drops, reverse=True)
    assert content["n_episodes"] == 3
    assert all(row["unit"] is None for row in content["lesions"])
    assert "nothing" in capsys.readouterr().out


def test_what_is_refused(run, tmp_path, capsys):
    assert "near names: ['memory']" in fails(capsys, "lesion", str(run), "--units", "memori")
    assert "must name a file that ends in .json or .csv" in fails(capsys, "lesion", str(run), "--out", "x.txt")
    assert "--episodes must be at least 1, got 0" in fails(capsys, "lesion", str(run), "--episodes", "0")
    assert "give one or other" in fails(capsys, "lesion", str(run), "--units", "memory", "--include", "memory")
