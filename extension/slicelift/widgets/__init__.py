"""What a notebook shows of runs: the card under a cell, and the calls that a user types.

`bundle` makes the saved output, `promoting`, `magic` and `live` are `slicelift.promote`, `%promote`, `slicelift.show`
and `slicelift.jobs`. Nothing here is state: a kernel that restarts loses nothing.
"""
