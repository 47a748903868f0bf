"""``python -m drago`` is the command `drago`."""

from drago.cli.main import main

if __name__ == "__main__":
    main()
