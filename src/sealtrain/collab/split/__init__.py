"""Split fine-tuning: a guest keeps what is secret, another machine does what is heavy."""
