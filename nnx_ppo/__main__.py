"""``python -m nnx_ppo``: the command line, where the console script is not on the path."""

from nnx_ppo.cli import main

if __name__ == "__main__":
    main()
