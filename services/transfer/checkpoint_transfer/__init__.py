"""The transfer service."""
