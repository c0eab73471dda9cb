"""The two consoles of the command line: results on standard output, progress and errors on standard error."""

from rich.console import Console

# What is printed holds paths and names of the user's, in which brackets and colons are no markup.
stdout = Console(markup=False, emoji=False, highlight=False)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False)
