"""The command line: `navira`, or `python -m navira`. The modules imported here register their
commands with `navira.cli.app`."""
from navira.cli import compare, experiments, generate, info, training  # noqa: F401
from navira.cli.app import main as main
