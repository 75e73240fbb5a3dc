"""What a run tells of itself: released metrics, alerts, gauges of the machine."""
