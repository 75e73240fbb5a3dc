"""Inside the guests: the node that leads, and the nodes that join it."""
