"""AMD SEV-SNP reports: strict parsing, verification up to AMD's root, appraisal, collection."""
