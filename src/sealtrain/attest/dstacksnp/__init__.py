"""dstack on machines with AMD SEV-SNP: a report, and the launch configuration it commits to."""
