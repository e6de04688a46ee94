"""A soak: hours of mixed load and of everything that happens to a daemon, against the real process. ``run`` is where it
begins.
"""
