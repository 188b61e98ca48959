"""`python -m research_gym.cli`."""

from research_gym.cli import main

main(prog_name="research-gym")
