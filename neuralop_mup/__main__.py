"""``neuralop-mup`` and ``python -m neuralop_mup``: the command of the laboratory, where it is installed."""

import sys


def main() -> int:
    """Run the command; see :func:`neuralop_mup.lab.cli.main`."""
    try:
        from neuralop_mup.lab.cli import main as command

        return command()
    except ModuleNotFoundError as error:
        needs = f'the command needs {error.name}, which is not installed: in a checkout, pip install ".[lab]".'
        print(f"neuralop-mup: error: {needs}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
