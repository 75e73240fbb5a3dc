"""What owners and brokers sign: consortium, approvals, dataset manifests, policies, receipts."""
