"""What ``edge-runtime bench --view growth`` measures: how cost grows with context, sessions and models."""
