SEQUENCES: dict = {}
