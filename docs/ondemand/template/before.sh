# Open OnDemand sources this on the node before script.sh: who may connect, and where.
# $host, find_port and create_passwd are its own.
port=$(find_port "$host")
password="$(create_passwd 32)"
export host port password
