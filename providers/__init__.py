"""Adapters: one file a provider effect. Nothing of a provider's SDK or HTTP library leaves this package."""
