"""One harness behind ``bench``, ``compare`` and ``make bench``: figures as ratios, measured side by side in one run."""
