"""The uploader service."""
