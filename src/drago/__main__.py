"""``python -m drago`` is the command `drago`."""

from drago.cli.main import main

main()
