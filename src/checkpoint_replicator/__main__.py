"""`python -m checkpoint_replicator` is `checkpoint-replicator`."""

from checkpoint_replicator.cli import main

if __name__ == "__main__":
    main(prog_name="checkpoint-replicator")
