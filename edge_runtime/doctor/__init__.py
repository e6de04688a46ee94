"""Whether a machine is set up for this runtime: what it is like (``machine``), what is wrong with it (``checks``), and
whether its engines really run (``trying``, ``device``)."""
