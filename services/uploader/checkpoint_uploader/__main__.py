"""`checkpoint-uploader`, `python -m checkpoint_uploader`."""

from checkpoint_replicator.process import service_command
from checkpoint_uploader.config import UploaderConfig
from checkpoint_uploader.service import run

__all__ = ["main"]

main = service_command("uploader", UploaderConfig, run)

if __name__ == "__main__":
    main()
