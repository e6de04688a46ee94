"""The daemon as a service of systemd: which files it takes, what puts them in place, and what takes them away again."""
