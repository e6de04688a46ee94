"""Training a multi-token drafter from its target's own outputs. Only ``edge-export train-drafter`` needs torch."""
