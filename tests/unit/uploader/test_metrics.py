from pathlib import Path

from prometheus_client import CollectorRegistry

from checkpoint_uploader.metrics import UploaderMetrics

README = Path(__file__).parents[3] / "services" / "uploader" / "README.md"


def test_every_metric_stands_in_the_readme() -> None:
    registry = CollectorRegistry()
    UploaderMetrics(registry)
    text = README.read_text()
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"`{name}`" in text or f"`{name}{{" in text, name
