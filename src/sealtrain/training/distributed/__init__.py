"""Several processes that train one model: forked ranks, what they agree on, sharded state."""
