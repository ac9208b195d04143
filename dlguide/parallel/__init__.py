"""Schemes of distribution beside synchronous data parallelism, one module each.

Each runs on real ranks, over a communicator that is an argument: `from dlguide.parallel import
compression`.
"""
