"""Confidential machines of Azure and Google, whose cloud's TPM says what booted."""
