"""A guest in an AWS Nitro enclave: its first process, and the parent instance outside."""
