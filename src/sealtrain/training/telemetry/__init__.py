"""Telemetry of a run: released metrics, alerts, gauges of the machine."""
