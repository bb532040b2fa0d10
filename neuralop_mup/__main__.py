"""Entry point of ``neuralop-mup`` and ``python -m neuralop_mup``, which run the command of :mod:`neuralop_mup.lab`."""

import sys


def main() -> int:
    """Run :func:`neuralop_mup.lab.cli.main`, or print an error if a dependency is missing."""
    try:
        from neuralop_mup.lab.cli import main as command

        return command()
    except ModuleNotFoundError as error:
        needs = f'the command needs {error.name}, which is not installed. In a checkout, run: pip install ".[lab]"'
        print(f"neuralop-mup: error: {needs}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
