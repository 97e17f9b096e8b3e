"""The command `checkpoint-coordinator`."""

from checkpoint_coordinator.config import CoordinatorConfig
from checkpoint_coordinator.service import run
from checkpoint_replicator.process import service_command

__all__ = ["main"]

main = service_command("coordinator", CoordinatorConfig, run)

if __name__ == "__main__":
    main()
