"""The gateway measured: beside other gateways, through disruptions, and with a large cluster to follow."""
