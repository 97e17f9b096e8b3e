"""The command `checkpoint-transfer`."""

from checkpoint_replicator.process import service_command
from checkpoint_transfer.config import TransferConfig
from checkpoint_transfer.service import run

__all__ = ["main"]

main = service_command("transfer", TransferConfig, run)

if __name__ == "__main__":
    main()
