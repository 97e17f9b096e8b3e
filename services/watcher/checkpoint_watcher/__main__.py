"""`checkpoint-watcher`."""

from checkpoint_replicator.process import service_command
from checkpoint_watcher.config import WatcherConfig
from checkpoint_watcher.service import run

__all__ = ["main"]

main = service_command("watcher", WatcherConfig, run)

if __name__ == "__main__":
    main()
