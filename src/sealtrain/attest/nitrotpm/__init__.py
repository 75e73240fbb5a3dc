"""dstack guests on EC2 instances with a NitroTPM: AWS's word for what booted, no encryption."""
