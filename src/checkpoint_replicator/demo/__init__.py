"""The demonstration: a small training job that loses a node and gets everything back."""
