"""dstack guests: the guest API, the event log and what it measures, the keys it derives."""
