"""AWS Nitro Enclaves: documents signed by the Nitro Secure Module."""
