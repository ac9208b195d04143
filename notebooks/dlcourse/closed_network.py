"""To be imported first by a process of one thread: it and its children get their own network.

Python's fork server runs nothing but the imports that it is given.
"""

from dlcourse.execution import enter_own_network

enter_own_network()
