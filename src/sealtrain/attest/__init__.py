"""Who runs: collect evidence, verify its signature and logs, appraise its claims under a policy."""
