"""``python -m placewright`` is ``placewright``: what launchers such as torchrun start."""

from placewright.cli.main import main

main()
