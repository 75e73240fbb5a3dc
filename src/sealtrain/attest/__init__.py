"""Evidence: collect it, verify its signature and logs, appraise its claims under a policy."""
