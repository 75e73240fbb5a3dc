"""The owners together: members and thresholds, approvals, dataset manifests, receipts, ledger."""
