"""Schemes of parallel training beside data parallelism, one module each, as lessons show them.

Each runs on real ranks, over a communicator that is an argument.
"""
