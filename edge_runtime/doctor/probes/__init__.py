"""Small programs that try a machine: ``python -m edge_runtime.doctor.probes.NAME REQUEST FD``. Each may crash or hang.

They measure and compare, and judge nothing; what they tell, line by line, is described in ``doctor.outcome``.
"""
