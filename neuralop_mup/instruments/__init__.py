"""What looks at one training run: a monitor, learned learning rates, kernels over depth. Nothing else imports them."""
