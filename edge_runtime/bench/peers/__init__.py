"""What is measured against: each peer runs in a process of its own and does the same four things."""
