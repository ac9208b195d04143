"""`python -m dlguide.cli`, the same as `dlguide`."""

from dlguide.cli import main

main()
